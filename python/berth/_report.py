"""What the memory of an engine did."""

from __future__ import annotations


class MemoryReport:
    """What the memory of an `InferenceSession`, or of `berth.ncnn.Memory`, did. A snapshot.

    Of the last run: `recorded` (there was no plan for its shapes), `predicted` (its shapes were not recorded, and the
    plan was made from what was learned), `requests`, `planned` (of these, served from the
    arena), `reordered`, `deviated` (not in the plan: served by a pool), `live_peak` (the most bytes the engine had
    asked for at once: no allocator can use less) and `plan` (a berth.Plan, None before there is one).

    Of the session or memory: `runs`; `problem`, a sentence if there was no memory for a plan; and `outside`, a list of
    sentences about memory that Berth does not manage, such as that of other providers. A session of ONNX Runtime also has
    `async_runs`, which a pool serves, and `weights`, None without a weights cache, else a dict: `bytes` (kept from
    loading), `shared` (of these, in pages that all processes share), `mapped` (bytes of weights that the engine reads in
    place) and `problem`.

    Of all sessions of the process, or all runs of the memory: `arenas`, their `arena_bytes`, what was `given_back` of
    them, `pool_bytes` and `plans`; for ONNX Runtime also `weight_bytes`.
    """

    def __init__(self, fields):
        self.__dict__.update(fields)

    @property
    def planned_bytes(self):
        """Bytes of the arena that the last run's plan needs; 0 before there is one."""
        return 0 if self.plan is None else self.plan.size

    def __repr__(self):
        if self.runs == 0:
            text = "no run yet"
        else:
            how = "recorded" if self.recorded else f"{self.planned} from the arena, {self.deviated} off the plan"
            text = (f"arena {self.arena_bytes:,} bytes, live peak {self.live_peak:,} bytes; "
                    f"last run: {self.requests} requests, {how}")
        notes = [note for note in (self.problem, *self.outside) if note]
        return f"<MemoryReport: {'; '.join([text, *notes])}>"

    def to_html(self, title="Memory map"):
        """The memory map of the last run's plan as one HTML page. ValueError: there is no plan yet."""
        if self.plan is None:
            error = ValueError("there is no plan yet: run the session once")
            error.code = "NotFound"
            raise error
        return self.plan.to_html(title)

    def _repr_html_(self):
        import html
        words = f"<p>{html.escape(repr(self)[1:-1])}</p>"
        return words if self.plan is None else words + self.plan._repr_html_()
