"""What people see of a plan.

    report.py       `print(plan)`: tables of devices, links and scopes
    scope_tree.py   nodes folded by name scope
    diagram.py      Graphviz text and SVG
    plan_page.py    the HTML page, also for notebooks; page_data.py: a plan as columns for it
    diff.py         what differs between two plans
    lint.py         warnings: what a better plan would not do
    lint_devices.py, lint_traffic.py   its checks
    plan_warning.py a warning, the change that mends it, and the plan with that change
    facts.py        what warnings and reports derive from a plan
    evaluation.py   predicted time, lower bound, bottleneck, alternatives
    compare.py      predictions beside a trace

`plan` imports it. It imports all packages but `serialize`, and reads plans through the protocol `PlanData`.
"""
