"""The reports of a page joined by module, so that its scripts need not take names apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookcli.reporters.html.shown_rows import columns_of, shown_rows, texts_of
from hookcli.system.escaping import visible
from hookcli.table import SEVERITIES, Reason, Report, Row, strict
from hookcli.table.marks import Fault, faults, with_slope, within
from hookcli.table.merged_rows import merged
from hookcli.table.names import relative
from hookcli.table.tree import Node, Tree

_CALLS = "calls"
_KINDS = ("parameters", "shapes", "activations", "inputs", _CALLS, "grads", "settings")
"""Reports from which parameters and modules are taken, in this order: by probe, or lists of calls with their inputs."""
_OF_GRADIENTS = {"output": "outputGrads", "input": "inputGrads"}
_SINGLE = ("settings", "inputGrads")  # kinds of rows that stay by themselves
_APART = ("check", "diff")  # further reports that are not of modules

Place = tuple[int, int]
"""A row: the number of its report on the page, and its own in the report."""


def beside(
    reports: Sequence[Report], settings: Sequence[Report] = (), names: Iterable[str] = (), *, kind: str = "record"
) -> dict[str, Any]:
    """The payload of a page beside the reports' values: `shown` rows, the models that are `joined`, and `places`.

    Joined are the reports of a side, of a model, or of a step of a record, with the `settings` of its model. `places`
    are all names in them, and further `names`, each with the name of the module around it.
    """
    every = dict(enumerate([*reports, *settings]))
    faults_by_row = [faults(with_slope(one) if one.probe == "grads" else one) for one in every.values()]
    joins = []
    for group in groups_of(reports, kind):
        model = reports[group[0]].model
        group += [number for number in every if number >= len(reports) and every[number].model == model]
        joins.append(Join({number: every[number] for number in group}, faults_by_row).payload())
    shown = [*map(shown_rows, reports, faults_by_row)]
    return {"shown": shown, "joined": joins, "places": places_of(every.values(), names)}


def groups_of(reports: Sequence[Report], kind: str) -> Iterable[list[int]]:
    """The numbers of reports that are shown as one model on a page of this kind."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    compares = any(report.probe == "diff" for report in reports)
    for number, report in enumerate(reports):
        meta, model = report.meta, report.model if kind in ("model", "record") else ""
        step = tuple(map(meta.get, ("phase", "step", "forward") if kind == "record" else ()))
        if meta.get("side") if compares else kind != "record" or "step" in meta:
            groups[meta.get("side"), model, *step].append(number)
    return groups.values()


def places_of(reports: Iterable[Report], names: Iterable[str]) -> dict[str, str]:
    """The places in reports and of further names, and all places around them: each with the module around it."""
    tree = Tree()
    for report in reports:
        tree.add(row.fqn for row in report.rows)
        tree.add(finding.fqn for finding in report.findings)
        tree.add(item.fqn for item in report.skipped)
    tree.add(names)
    return {node.fqn: node.owner.fqn for node in tree if node.owner}


class Join:
    """The modules and parameters of one model, of reports and their faults by the numbers of these on the page."""

    def __init__(self, reports: Mapping[int, Report], row_faults: Sequence[Sequence[Fault | None]]) -> None:
        self._reports, self._faults = reports, row_faults
        self._tree = Tree()
        self._types: dict[Node, str] = {}
        self._modules: dict[Node, dict[str, list[Place]]] = {}
        self._parameters: dict[Node, dict[str, list[Place]]] = {}
        for kind, place, row in self.rows():
            self.take(kind, place, row)
        self.take_others() if self._modules else self.take_owners()
        self._parents = {module: self._nearest(module.around()) for module in self._modules}
        self._order = self.in_order()
        self._numbers = {module: number for number, module in enumerate(self._order)}

    def rows(self) -> Iterator[tuple[str, Place, Row]]:
        """The rows of modules and parameters, with their kind."""
        of_kind: dict[str, list[int]] = defaultdict(list)
        for number, report in self._reports.items():
            calls = report.grouping == "list" and report.rows and isinstance(report.rows[0].get("inputs"), list)
            is_joined = report.grouping == "nested" or report.probe == "parameters"
            of_kind[_CALLS if calls else report.probe if is_joined else ""].append(number)
        for kind in _KINDS:
            for number in of_kind[kind]:
                yield from ((kind, (number, at), row) for at, row in enumerate(self._reports[number].rows))

    def take(self, kind: str, place: Place, row: Row) -> None:
        """Put a row with others of its module or parameter, and kind."""
        is_gradient = kind == "grads" and row.get("kind") == "parameter"
        if kind == "parameters" or is_gradient:
            lists = self._parameters.setdefault(self._tree[row.fqn], {})
            lists.setdefault("gradients" if is_gradient else "values", []).append(place)
            return
        module = self._tree[row.fqn]
        if kind == _CALLS and row.get("kind") == "function":  # other reports may have it
            operator = self._tree[f"{row.fqn}:{row.get('type')}_{row.get('number')}"]
            module = operator if operator in self._modules else module
        elif row.get("type") and (kind != _CALLS or row.get("kind") == "module"):
            self._types.setdefault(module, str(row["type"]))
        lists = self._modules.setdefault(module, {})
        if kind == "grads":
            kind = _OF_GRADIENTS.get(str(row.get("kind")), "outputGrads")
        if kind != _CALLS:
            lists.setdefault(kind, []).append(place)

    def take_others(self) -> None:
        """Add rows of other probes' reports on modules, under these reports' numbers; and modules that never ran."""
        for number, report in self._reports.items():
            is_other = report.grouping == "nested" and report.probe not in (*_KINDS, *_APART)
            for at, row in enumerate(report.rows if is_other else ()):
                if lists := self._modules.get(self._tree[row.fqn]):
                    lists.setdefault(str(number), []).append((number, at))
            for item in report.skipped:
                if item.kind == Reason.NEVER_CALLED:
                    self._modules.setdefault(self._tree[item.fqn], {})

    def take_owners(self) -> None:
        """Add the modules whose parameters have gradients, where nothing is known of modules."""
        gradients = [place for lists in self._parameters.values() for place in lists.get("gradients", ())]
        for number, at in reversed(gradients):  # the first of the model first
            row = self._reports[number].rows[at]
            owner = self._tree[row.fqn].owner or self._tree[""]
            self._modules.setdefault(owner, {})
            self._types.setdefault(owner, str(row.get("type") or ""))

    def _nearest(self, nodes: Iterable[Node]) -> Node | None:
        return next((node for node in nodes if node in self._modules), None)

    def _number(self, module: Node | None) -> int | None:
        return self._numbers[module] if module else None

    def in_order(self) -> list[Node]:
        """The modules, each before its parts."""
        parts: dict[Node | None, list[Node]] = defaultdict(list)
        for module, parent in self._parents.items():
            parts[parent].append(module)
        ordered, left = list[Node](), parts[None][::-1]
        while left:
            ordered.append(left.pop())
            left += parts[ordered[-1]][::-1]
        return ordered

    def payload(self) -> dict[str, Any]:
        """The join as JSON. `modules` come before their parts, in the order of calls, with their rows by kind.

        `parameters` are in the order of their modules. `merged` are what several rows of one kind are together, by kind
        and the number of their module or parameter.
        """
        inside = self.inside()
        owners = {place: self._nearest(place.chain()) for place in self._parameters}
        owners = dict(sorted(owners.items(), key=lambda one: -1 if one[1] is None else self._numbers[one[1]]))
        modules = [
            self.described(
                node, self._parents[node], parent=self._number(self._parents[node]), rows=self._modules[node]
            )
            | {"type": self._types.get(node, ""), "inside": inside.get(node, "")}
            for node in self._order
        ]
        parameters = [
            self.described(place, owner, module=self._number(owner), rows=self._parameters[place])
            for place, owner in owners.items()
        ]
        merged_rows = self.merged(self._order, self._modules) | self.merged([*owners], self._parameters)
        return {"reports": [*self._reports], "modules": modules, "parameters": parameters, "merged": merged_rows}

    def described(self, place: Node, around: Node | None, **values: Any) -> dict[str, Any]:
        """A module or parameter as JSON, named as below the module around it."""
        name = relative(place.fqn, around.fqn if around else "")
        return {"fqn": place.fqn, "name": name or "(model)", **values}

    def merged(self, places: Sequence[Node], lists: Mapping[Node, Mapping[str, Sequence[Place]]]) -> dict[str, Any]:
        """The rows of each place with several, merged, by kind: `rows`, their `texts`, and the numbers of `places`."""
        several: dict[str, dict[int, Sequence[Place]]] = defaultdict(dict)
        for number, place in enumerate(places):
            for kind, rows in lists[place].items():
                if rows[1:] and kind not in _SINGLE:
                    several[kind][number] = rows
        together = {}
        for kind, by_number in several.items():
            report = self._reports[next(iter(by_number.values()))[0][0]]
            known = [*report.known_columns()]
            merged_rows = []
            for number, rows in by_number.items():
                calls = [self._reports[of].rows[at] for of, at in rows]
                whole = merged(calls, places[number], (), known)
                merged_rows.append(whole.having({"calls": len({row.get("call") for row in calls})}))
            names = [column.name for column in columns_of(report, merged_rows)]
            values = [{name: strict(row.get(name)) for name in names} for row in merged_rows]
            together[kind] = {"places": [*by_number], "rows": values, "texts": texts_of(report, merged_rows)}
        return together

    def inside(self) -> dict[Node, str]:
        """The worst fault of each module's parts: of outputs before gradients, which follow from them; and findings."""
        held: dict[Node, list[Fault]] = defaultdict(list)
        for module, fault in self.faults():
            for outer in module.around():
                if outer in self._modules:
                    held[outer].append(fault)
        return {module: visible(within(module, own, self._tree)) for module, own in held.items()}

    def faults(self) -> Iterator[tuple[Node, Fault]]:
        """The faults of rows and the findings of checks, with their modules."""
        for kind in ("activations", "outputGrads"):
            for module in self._order:
                own = (self._faults[number][at] for number, at in self._modules[module].get(kind, ()))
                yield from ((module, fault) for fault in own if fault)
        findings = (one for report in self._reports.values() for one in report.findings if one.severity in SEVERITIES)
        for one_fault in dict.fromkeys(Fault(one.fqn, one.severity, one.message) for one in findings):
            if owner := self._nearest(self._tree[one_fault.fqn].chain()):
                yield owner, one_fault
