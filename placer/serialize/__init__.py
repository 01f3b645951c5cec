"""A plan as text: one JSON value per line, the same text for the same plan.

    write.py     plan to text
    records.py   the types of the lines, that a reader checks them against
    read.py      text to plan; damaged input is an error that names the line

`plan` imports it. It imports `rules`, `partition`, `cluster` and the protocol `PlanData`.
"""
