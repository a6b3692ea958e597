"""The application: a tree of modules, the figures of one, and the findings."""

from __future__ import annotations

import signal
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from time import sleep
from typing import Any

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.driver import Driver
from textual.events import Resize
from textual.widgets import Footer, Input, OptionList, Static, Tree
from textual.widgets.tree import TreeNode

from hookcli.capabilities.explore.places import Joined, Place, Subject, figures, finding_text, headline
from hookcli.capabilities.explore.search import search
from hookcli.system.escaping import visible
from hookcli.table import Report
from hookcli.table.names import relative

_MANY = 500  # places that a search opens
_MOMENT = 0.2  # seconds on a module before its history is read
_EXAMPLE = "conv -bn, macs>1M, type=Conv2d, act.zeros>50%, grad.l2=nan"
_HELP = f"""\
Space opens or folds a module, Tab goes to the figures and the findings, and Enter on a finding to its module.
Left and right go to the step before and after, m to the next model, phase or side of a comparison.
/ searches words (-bn leaves out) and figures; Enter goes to what is found, Escape ends the search:
{_EXAMPLE}
"""


class Figures(Static):
    """The figures of a module, which `draw` writes anew for another width."""

    def __init__(self, draw: Callable[[], None]) -> None:
        super().__init__()
        self._draw_anew, self._drawn_width = draw, 0

    def on_resize(self, event: Resize) -> None:
        if event.size.width != self._drawn_width:
            self._drawn_width = event.size.width
            self.app.call_later(self._draw_anew)


class ReadsOn:
    """Makes a driver of Textual read on after bytes that are not UTF-8, which would end its thread for input."""

    def run_input_thread(self) -> None:
        """Read until the screen closes. What came with such bytes is lost."""
        driver: Any = super()
        while True:
            try:
                driver.run_input_thread()
            except UnicodeDecodeError:
                continue
            return


class Explorer(App[None]):
    """Explores one of several models."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012 - Textual's
        Binding("slash", "focus('search')", "Search"),
        Binding("n", "finding", "Next finding"),
        Binding("left", "step(-1)", "Step", key_display="← →", priority=True),
        Binding("right", "step(1)", show=False, priority=True),
        Binding("m", "model", "Next model"),
        Binding("question_mark", "help", "Help"),
        Binding("q,ctrl+c", "quit", "Quit"),
        Binding("escape", "go", show=False),
    ]
    CSS_PATH = "app.tcss"

    def __init__(self, subjects: Sequence[Subject]) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours, dark or light
        self._subjects, self._number, self._subject, self._joined = subjects, -1, subjects[0], Joined()
        self._open, self._kept = set[str](), set[Place]()
        self._search, self._made = "", dict[str, TreeNode[str]]()
        self._history: tuple[tuple[int, str], Sequence[Report]] = (-1, ""), ()
        self._tree, self._list, self._input = Tree("", ""), OptionList(), Input("", _EXAMPLE, id="search")
        self._verdict, self._figures = Static(id="verdict"), Figures(self._draw)

    def get_driver_class(self) -> type[Driver]:
        """The driver of this platform, which reads on."""
        return type("Driver", (ReadsOn, super().get_driver_class()), {})

    def compose(self) -> ComposeResult:
        yield self._verdict
        yield Horizontal(self._tree, VerticalScroll(self._figures, id="pane"))
        yield from (self._list, self._input, Footer())

    def on_mount(self) -> None:
        with suppress(RuntimeError, ValueError, AttributeError):  # no main thread, or Windows
            for end in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                if signal.getsignal(end) is not signal.SIG_IGN:  # as under nohup
                    get_running_loop().add_signal_handler(end, partial(self.exit, return_code=128 + end))
        self._tree.show_guides, self._tree.guide_depth = False, 2
        self.action_model()
        self._tree.focus()

    def action_model(self) -> None:
        self._number = (self._number + 1) % len(self._subjects)
        self._subject = self._subjects[self._number]
        self._load(next((at for at in self._subject.lines.values() if at is not None), len(self._subject.steps) - 1))

    def _load(self, at: int) -> None:
        """Show a step."""
        self._at, self._joined = at, Joined(self._subject.reports(self._subject.steps[at]), self._subject.lines)
        self._list.clear_options().add_options([Text(finding_text(one)) for one in self._joined.findings])
        self._list.display = bool(self._joined.findings)
        self.refresh_bindings()
        self._show()

    @on(Input.Changed)
    def _show(self, event: object = None, fqn: str | None = None) -> None:
        """Build the tree of what the search finds, and go to a place; else to the first that is found, or stay."""
        places, test = self._joined.places.values(), search(self._joined, self._input.value)
        matches = [*filter(test, places)]  # all without a test
        place = self._joined.near(fqn if fqn is not None else matches[0].fqn if test and matches else self._fqn)
        if not self._search:
            self._open = {fqn for fqn, node in self._made.items() if node.is_expanded}
        self._search = self._input.value
        self._kept = {each for one in matches for each in one.chain()}
        opened = [*place.chain(), *(self._kept if test and len(matches) < _MANY else ())]
        self._tree.root.remove_children()
        number = f" ({len(matches):,} of {len(places):,} found)" if test else ""
        self._tree.root.set_label(Text(visible(self._subject.title) + number))
        self._made = {"": self._tree.root}
        self._grow(self._tree.root, self._open | {one.fqn for one in opened})
        self._tree.get_node_at_line(0)  # counts the lines
        self._tree.move_cursor(self._made[place.fqn if place in self._kept else ""])
        self.call_after_refresh(self._draw)

    def _grow(self, node: TreeNode[str], opened: set[str]) -> None:
        """Open a node: those in it are made only now."""
        tops = (place for place in self._joined.places.values() if not place.parent)
        place = self._joined.places.get(node.data or "")
        for part in () if node.children else (place.parts if place else tops):
            if part in self._kept:
                name = visible(relative(part.fqn, place.fqn if place else ""))
                label = Text(name).append(f" {part.type}", "dim")
                inner = node.add(label.append(" ▲" * part.faulty, "red"), part.fqn, allow_expand=bool(part.parts))
                self._made[part.fqn] = inner
                if part.parts and part.fqn in opened:
                    self._grow(inner, opened)
        if not node.is_expanded:  # it would say so again
            node.expand()

    @on(Tree.NodeExpanded)
    def _opened(self, event: Tree.NodeExpanded[str]) -> None:
        self._grow(event.node, set())

    @property
    def _fqn(self) -> str:
        return (self._tree.cursor_node.data if self._tree.cursor_node else "") or ""

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    @on(Tree.NodeHighlighted)
    def _draw(self) -> None:
        """Write the verdict, and the figures of the chosen module; those over steps come from another thread."""
        place, width = self._joined.near(self._fqn), self._figures.size.width
        self._wanted, (known, history) = (self._number, place.fqn), self._history
        self._verdict.update(headline(self._subject, self._joined, self._at, self.size.width - 2))
        self._figures.update(figures(place, self._joined, history if known == self._wanted else (), width))
        if self._subject.steps[1:] and known != self._wanted:
            Thread(target=self._read, args=self._wanted, daemon=True).start()

    def _read(self, number: int, fqn: str) -> None:
        sleep(_MOMENT)
        if self._wanted == (number, fqn):
            self._history = (number, fqn), self._subjects[number].history(fqn)
            self.call_later(self._draw)

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        finding = self._joined.findings[event.option_index]
        if (at := self._subject.lines.get(finding)) not in (None, self._at):
            self._load(at)
            self._list.highlighted = event.option_index
        self.action_go(finding.fqn)

    @on(Input.Submitted)
    def _enter(self) -> None:
        self._tree.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out keys that have nothing to do, and those with which one moves in the search."""
        steps = self._subject.steps[1:] and self.focused is not self._input
        return bool({"step": steps, "model": self._subjects[1:]}.get(action, True))

    def action_step(self, by: int) -> None:
        self._load(min(max(self._at + by, 0), len(self._subject.steps) - 1))

    def action_finding(self) -> None:
        self._list.action_cursor_down()
        self._list.action_select()

    def action_go(self, fqn: str | None = None) -> None:
        """End the search, and go to a place, or stay."""
        with self.prevent(Input.Changed):
            self._input.value = ""
        self._show(fqn=self._fqn if fqn is None else fqn)
        self._tree.focus()

    def action_help(self) -> None:
        self._figures.update(Text(_HELP))
