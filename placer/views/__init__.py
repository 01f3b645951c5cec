"""Views of a plan for people: text, pictures, pages, comparisons, warnings.

    report.py       `print(plan)`: tables of devices, links and scopes
    scope_tree.py   nodes folded by name scope
    diagram.py      Graphviz text and SVG
    plan_page.py    the HTML page, also for notebooks; page_data.py: a plan as columns for it
    diff.py         the differences of two plans
    lint.py         warnings about parts of a plan that cost time or memory
    lint_devices.py, lint_traffic.py   its checks
    plan_warning.py a warning, the change that it suggests, and the plan with that change
    facts.py        facts that warnings and reports derive from a plan
    evaluation.py   predicted time, lower bound, bottleneck, alternatives
    scale.py        predictions for several batch sizes
    compare.py      predictions beside a trace

`plan` imports it. It imports all packages but `serialize`, and reads plans through the protocol `PlanData`.
"""
