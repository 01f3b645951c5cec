"""A plan as text: one JSON value per line, the same text for the same plan.

    write.py   plan to text
    read.py    text to plan; damaged input is an error that names the line

`plan` imports it. It imports `rules`, `partition`, `cluster` and the protocol `PlanData`.
"""
