"""Text, pages and pictures for people. Nothing here knows what a plan is.

    text.py        numbers with units, device names, tables that fit a terminal
    page.py        self-contained HTML pages with a content security policy
    timeline.py    bars over an axis of time (a Gantt chart), as SVG or as a page; traces are drawn by it, too
    page_assets/   the scripts, style sheets and skeletons of the pages, and dagre, which lays out graphs

Views, simulation, search and `runtime` may import it. It imports nothing of the placer.
"""
