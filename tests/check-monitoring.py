#!/usr/bin/env python3
"""Checks what is shipped for Prometheus and Grafana in packaging/monitoring.

Each metric and label that an alert or a panel asks for must stand in docs/metrics.md, which a test
holds against the code. Each condition of `annex status` has an alert, and each alert a line in the
manual and a test. promtool, whose path is given, judges rules, tests, every expression, and the
names, types and descriptions of all metrics.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "packaging/monitoring"
ROW = re.compile(r"^\| `(annex\w+)` \| (\w+) \| [^|]* \| ([^|]*) \| ([^|\n]*) \|", re.M)
METRIC = re.compile(r"\bannexd?_\w+")
# Every metric has these from Prometheus or from its type.
ALWAYS = {"instance", "job", "le"}
SEVERITIES = {"critical", "warning", "info"}

problems = []


def rows():
    """Each metric's name, type, labels and description."""
    return ROW.findall((ROOT / "docs/metrics.md").read_text())


def known_metrics():
    """Each series' labels, by its name."""
    known = {}
    for name, kind, labels, _ in rows():
        for end in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            known[name + end] = set(re.findall(r"`(\w+)`", labels))
    return known


def check_expression(where, expression, known):
    # What is quoted is no name.
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = set(METRIC.findall(bare))
    allowed = set(ALWAYS)
    for name in names:
        if name in known:
            allowed |= known[name]
        else:
            problems.append(f"{where}: docs/metrics.md has no {name}")
    asked = set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", " ".join(re.findall(r"\{([^}]*)\}", bare))))
    for labels in re.findall(r"\bby \(([^)]*)\)", bare):
        asked |= {label.strip() for label in labels.split(",")}
    for label in asked - allowed:
        problems.append(f"{where}: none of {', '.join(sorted(names))} has a label {label}")


def alerts():
    """Name, expression, severity and whether both texts are there, as they stand in alerts.yml."""
    for rule in (SHIPPED / "alerts.yml").read_text().split("      - alert: ")[1:]:
        name = rule.split("\n", 1)[0]
        expression = re.search(r"^ +expr: (.*)$", rule, re.M).group(1)
        severity = re.search(r"^ +labels: \{severity: (\w+)\}$", rule, re.M)
        texts = [text in rule for text in ("          summary: \"", "          description: \"")]
        yield name, expression, severity and severity.group(1), all(texts)


def check_alerts(known):
    manual = (ROOT / "docs/metrics.md").read_text()
    told = dict(re.findall(r"^\| `(Annex\w+)` \| (\w+) \|", manual, re.M))
    tests = (SHIPPED / "alerts-test.yml").read_text()
    judged, awaited, seen = set(), set(), {}
    for name, expression, severity, has_texts in alerts():
        seen[name] = severity
        check_expression(name, expression, known)
        judged |= set(re.findall(r'condition="(\w+)"', expression))
        awaited |= set(re.findall(r'event="(\w+)"', expression))
        if severity not in SEVERITIES or not has_texts:
            problems.append(f"{name}: it needs a severity ({', '.join(sorted(SEVERITIES))}), a summary and a description")
        if f'alertname="{name}"' not in tests:
            problems.append(f"{name}: alerts-test.yml does not have it fire")
    if told != seen:
        apart = sorted(set(told.items()) ^ set(seen.items()))
        problems.append(f"docs/metrics.md and alerts.yml differ: {apart}")
    rows = (ROOT / "docs/commands.md").read_text().split("| condition | severity |", 1)[1].split("\n\n", 1)[0]
    conditions = set(re.findall(r"^\| `(\w+)` \|", rows, re.M)) - {"healthy"}
    if conditions != judged:
        problems.append(f"conditions without an alert, or alerts without one: {sorted(conditions ^ judged)}")
    events = (ROOT / "docs/commands.md").read_text().split("| kind | what happened |", 1)[1].split("\n\n", 1)[0]
    for event in awaited - set(re.findall(r"`(\w+)`", events)):
        problems.append(f"there is no event {event}")
    return len(seen)


def check_dashboard(known):
    """Every panel's expressions, as a recording rule that promtool can read."""
    rules = ["groups:", "  - name: panels", "    rules:"]
    for panel in json.loads((SHIPPED / "dashboard.json").read_text())["panels"]:
        if panel["type"] == "row":
            continue
        if not panel["targets"] or not panel["description"]:
            problems.append(f"panel {panel['title']}: it shows nothing, or does not say what")
        for target in panel["targets"]:
            check_expression(f"panel {panel['title']}", target["expr"], known)
            rules += [f"      - record: panel:{len(rules)}", f"        expr: {json.dumps(target['expr'])}"]
    return rules


def shown():
    """One sample of each metric, as a daemon that has them all would show them."""
    for name, kind, _, text in rows():
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}"
        if kind == "histogram":
            yield f'{name}_bucket{{le="+Inf"}} 1\n{name}_sum 1\n{name}_count 1'
        else:
            yield f"{name} 1"


def promtool(tool, *arguments, read=None):
    ran = subprocess.run([tool, *arguments], cwd=SHIPPED, input=read, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode != 0:
        problems.append(f"promtool {' '.join(arguments)}:\n{ran.stdout}")


def main(tool):
    known = known_metrics()
    n = check_alerts(known)
    panels = check_dashboard(known)
    promtool(tool, "check", "rules", "alerts.yml")
    promtool(tool, "test", "rules", "alerts-test.yml")
    promtool(tool, "check", "metrics", read="\n".join(shown()) + "\n")
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as rules:
        rules.write("\n".join(panels) + "\n")
        rules.flush()
        promtool(tool, "check", "rules", rules.name)
    expressions = sum("record:" in line for line in panels)
    print("\n".join(problems) if problems else f"{n} alerts and {expressions} expressions of the dashboard are good")
    return bool(problems)


sys.exit(main(sys.argv[1]))
