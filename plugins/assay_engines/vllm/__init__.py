"""The engine on a vLLM server: its own process and environment, token ids in and out over HTTP."""
