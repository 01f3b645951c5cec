"""Text, pages and pictures for people. Nothing here knows what a plan is.

    text.py        numbers with units, device names, tables that fit a terminal
    page.py        the self-contained HTML page, with a content security policy
    timeline.py    bars over an axis of time (a Gantt chart), as SVG or as a tab of the page; traces are drawn by it, too
    page_assets/   the scripts, the style sheet and the skeleton of the page, and dagre, which lays out graphs

Views, simulation, search and `runtime` may import it. It imports nothing of the placer.
"""
