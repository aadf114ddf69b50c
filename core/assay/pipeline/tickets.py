"""Which prompt is drawn when: a fixed order that depends on the seed alone, so that a resumed run draws the same."""

import hashlib
import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from assay.contracts import RolloutRequest, Sampling, Task


class Ticket(NamedTuple):
    """One turn of one task: the unit that is trained on at most once."""

    number: int
    task: Task
    turn: int = 0
    """How often the task had its turn before."""

    @property
    def group_id(self) -> str:
        """Id of the group of rollouts that answers this ticket."""
        return f"g{self.number:06d}"

    def requests(self, group_size: int, sampling: Sampling, *, seed: int) -> list[RolloutRequest]:
        """The requests of the group; each has its own seed, made of the run's seed, the ticket and the sample."""
        return [
            RolloutRequest(
                id=f"r{self.number:06d}-{sample:02d}",
                task=self.task,
                group_id=self.group_id,
                sampling=sampling.model_copy(update={"seed": request_seed(seed, self.number, sample)}),
                priority=self.number,
                turn=self.turn,
                sample=sample,
            )
            for sample in range(group_size)
        ]


class Tickets:
    """Tickets 0, 1, 2, ... over the tasks: every epoch is a permutation of all of them."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        next_number: int = 0,
        skip: Collection[int] = (),
        weights: Callable[[Sequence[str]], Sequence[float]] | None = None,
    ) -> None:
        """Start at ticket `next_number` over `tasks`, which must not be empty; numbers in `skip` are never drawn.

        `weights` gives, for task ids, the probability (0 to 1) that a ticket of that task is drawn when it is its turn:
        a task sampler. When a whole epoch of tickets was passed over, the next one is drawn all the same.
        """
        if not tasks:
            raise ValueError("there are no tasks to draw from")
        self._weights = weights
        self._skip = frozenset(skip)
        self.tasks = tasks
        self.seed = seed
        self.next_number = next_number
        self._order: tuple[int, list[int]] | None = None

    def take(self, count: int) -> list[Ticket]:
        """The next `count` tickets."""
        taken: list[Ticket] = []
        passed = 0
        while len(taken) < count:
            if self.next_number not in self._skip:
                ticket = self.at(self.next_number)
                if passed >= len(self.tasks) or self._wanted(ticket):
                    taken.append(ticket)
                    passed = 0
                else:
                    passed += 1
            self.next_number += 1
        return taken

    def _wanted(self, ticket: Ticket) -> bool:
        if self._weights is None:
            return True
        draw = random.Random(f"{self.seed}:{ticket.number}:wanted").random()  # noqa: S311 (a draw, not a secret)
        return draw < self._weights([ticket.task.id])[0]

    def at(self, number: int) -> Ticket:
        """The ticket with this number."""
        epoch, place = divmod(number, len(self.tasks))
        if self._order is None or self._order[0] != epoch:
            order = list(range(len(self.tasks)))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)  # noqa: S311 (an order, not a secret)
            self._order = (epoch, order)
        return Ticket(number, self.tasks[self._order[1][place]], epoch)


class Decided:
    """Which tickets were decided on: all below `next`, and those in `beyond`."""

    def __init__(self, next_number: int = 0, beyond: set[int] | None = None) -> None:
        """Start as a checkpoint remembers it."""
        self.next = next_number
        self.beyond = beyond or set()

    def add(self, number: int) -> None:
        """A ticket was decided on."""
        self.beyond.add(number)
        while self.next in self.beyond:
            self.beyond.remove(self.next)
            self.next += 1


def request_seed(seed: int, ticket: int, sample: int) -> int:
    """A seed in [0, 2^31) for one request, the same in every process."""
    digest = hashlib.blake2b(f"{seed}:{ticket}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
