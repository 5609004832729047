"""The ladder: many runs, the laws through them, and the compute that an optimizer saves.

ladder.yaml -> plan (`LadderPlan`, its cells by danalab.sweep.grid) -> run (trials, dials, seeds) -> danalab.sweep.run
  -> run folders -> danalab.sweep.rows (ladder.jsonl) -> analysis -> fit.tuning, fit, saving, studies
  -> danalab.report.tables
"""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
