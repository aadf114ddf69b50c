"""Best-of-n by a reward source beside majority vote and the oracle: what `assay rerank` does."""

from assay.reranking.judged import JudgedPools, Scorer, judge_pools, pooled_scorer, source_scorer
from assay.reranking.pools import Pool, PoolColumns, Response, pools_of_rows, pools_of_run, read_pools
from assay.reranking.report import Reranked, rerank

__all__ = [
    "JudgedPools",
    "Pool",
    "PoolColumns",
    "Reranked",
    "Response",
    "Scorer",
    "judge_pools",
    "pooled_scorer",
    "pools_of_rows",
    "pools_of_run",
    "read_pools",
    "rerank",
    "source_scorer",
]
