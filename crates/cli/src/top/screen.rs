//! Draws the figures on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::figures::{Figures, Order};
use crate::terminal::printable;

/// The most instances and busy subjects that are shown.
const MOST_ROWS: usize = 8;

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) filter: String,
    /// Whether keys change the filter.
    pub(super) is_typing: bool,
    pub(super) rules: TableState,
    pub(super) has_colour: bool,
}

impl View {
    fn style(&self, colour: Color) -> Style {
        match self.has_colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// Writes a rate so that a small rate does not look like zero.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Writes the share of denied requests.
pub(super) fn share(allowed: f64, denied: f64) -> String {
    match allowed + denied {
        0.0 => "-".to_owned(),
        all => format!("{:.1}%", 100.0 * denied / all),
    }
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Returns the cells of an instance.
pub(super) fn instance_cells(figures: &Figures, place: usize) -> [String; 8] {
    let it = &figures.instances[place];
    if !it.is_up {
        let mut cells = [const { String::new() }; 8];
        cells[0] = printable(&it.address);
        cells[1] = "no answer".to_owned();
        return cells;
    }
    [
        printable(&it.address),
        printable(&it.store),
        it.store_p99
            .map_or("-".to_owned(), |p99| format!("{p99} us")),
        rate(it.allowed),
        rate(it.denied),
        it.keys.to_string(),
        mebibytes(it.resident_bytes),
        it.cpu
            .map_or("-".to_owned(), |cpu| format!("{:.0}%", 100.0 * cpu)),
    ]
}

pub(super) const INSTANCE_COLUMNS: [&str; 8] = [
    "instance",
    "store",
    "p99",
    "allowed/s",
    "denied/s",
    "keys",
    "memory",
    "CPU",
];

pub(super) fn draw(frame: &mut Frame<'_>, figures: &Figures, view: &mut View) {
    let rows = |count: usize| u16::try_from(count.min(MOST_ROWS)).unwrap_or(0);
    let problems = rows(figures.problems.len());
    let instances = rows(figures.instances.len()) + 2;
    let hot_keys = match figures.hot_keys.len() {
        0 => 0,
        count => rows(count) + 2,
    };
    let areas: [Rect; 6] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(problems),
        Constraint::Length(instances),
        Constraint::Min(3),
        Constraint::Length(hot_keys),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let [head, problem_area, instance_area, rule_area, hot_area, foot] = areas;

    let good = view.style(Color::Green);
    let bad = view.style(Color::Red);
    let denied = if figures.denied > 0.0 {
        bad
    } else {
        Style::new()
    };
    frame.render_widget(
        Line::from(vec![
            Span::styled(format!("{} allowed/s", rate(figures.allowed)), good),
            Span::raw("  "),
            Span::styled(format!("{} denied/s", rate(figures.denied)), denied),
            Span::raw(format!(
                " ({})  {} without a rule/s  {} by failure policies/s",
                share(figures.allowed, figures.denied),
                rate(figures.unmatched),
                rate(figures.fallbacks),
            )),
        ]),
        head,
    );
    let lines = figures.problems.iter().take(MOST_ROWS);
    let lines: Vec<Line<'_>> = lines
        .map(|it| Line::styled(format!("! {}", printable(it)), bad))
        .collect();
    frame.render_widget(Paragraph::new(lines), problem_area);
    draw_instances(frame, figures, instance_area);
    draw_rules(frame, figures, view, rule_area);
    draw_hot_keys(frame, figures, hot_area);
    let help = match view.is_typing {
        true => format!("filter: {}_   Enter keeps it, Esc clears it", view.filter),
        false => "q quit   s sort   / filter   up and down scroll".to_owned(),
    };
    frame.render_widget(Line::raw(help), foot);
}

fn head<'t>(names: impl IntoIterator<Item = &'t str>) -> Row<'t> {
    Row::new(names.into_iter().map(Cell::from)).style(Style::new().add_modifier(Modifier::BOLD))
}

fn draw_instances(frame: &mut Frame<'_>, figures: &Figures, area: Rect) {
    let shown = figures.instances.len().min(MOST_ROWS);
    let rows = (0..shown).map(|place| Row::new(instance_cells(figures, place)));
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(16),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(5),
    ];
    let table = Table::new(rows, widths).header(head(INSTANCE_COLUMNS));
    frame.render_widget(table, area);
}

fn draw_rules(frame: &mut Frame<'_>, figures: &Figures, view: &mut View, area: Rect) {
    let rules = figures.sorted(view.order, &view.filter);
    let bad = view.style(Color::Red);
    let rows = rules.iter().map(|rule| {
        let kind = match rule.state.as_str() {
            "enforce" => rule.algorithm.clone(),
            state => format!("{}, {state}", rule.algorithm),
        };
        let style = if rule.denied > 0.0 { bad } else { Style::new() };
        Row::new([
            Cell::from(printable(&rule.id)),
            Cell::from(printable(&kind)),
            Cell::from(rate(rule.allowed)),
            Cell::from(rate(rule.denied)).style(style),
            Cell::from(share(rule.allowed, rule.denied)),
            Cell::from(rate(rule.near_limit)),
            Cell::from(rate(rule.shadow_denied)),
        ])
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(12),
        Constraint::Length(13),
    ];
    let first = format!("rule (by {})", view.order.name());
    let names = [
        &first,
        "algorithm",
        "allowed/s",
        "denied/s",
        "share",
        "near limit/s",
        "would deny/s",
    ];
    let table = Table::new(rows, widths).header(head(names));
    view.rules.select(view.rules.selected().or(Some(0)));
    frame.render_stateful_widget(table, area, &mut view.rules);
}

fn draw_hot_keys(frame: &mut Frame<'_>, figures: &Figures, area: Rect) {
    let hot_keys = figures.hot_keys.iter().take(MOST_ROWS);
    let rows = hot_keys.map(|it| {
        Row::new([
            printable(&it.subject),
            printable(&it.rule),
            it.checks.to_string(),
        ])
    });
    let widths = [
        Constraint::Length(18),
        Constraint::Fill(1),
        Constraint::Length(14),
    ];
    let table = Table::new(rows, widths).header(head(["busy subject", "rule", "recent checks"]));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::figures::{HotKey, Instance, RuleRates};

    fn figures() -> Figures {
        Figures {
            allowed: 120.0,
            denied: 30.0,
            problems: vec!["http://b: no\u{1b}[2J answer".to_owned()],
            rules: vec![
                RuleRates {
                    id: "api".to_owned(),
                    algorithm: "gcra".to_owned(),
                    state: "enforce".to_owned(),
                    allowed: 120.0,
                    denied: 30.0,
                    ..RuleRates::default()
                },
                RuleRates {
                    id: "login".to_owned(),
                    algorithm: "quota".to_owned(),
                    state: "shadow".to_owned(),
                    ..RuleRates::default()
                },
            ],
            instances: vec![Instance {
                address: "http://a".to_owned(),
                is_up: true,
                store: "redis".to_owned(),
                store_p99: Some(500),
                cpu: Some(0.25),
                ..Instance::default()
            }],
            hot_keys: vec![HotKey {
                rule: "api".to_owned(),
                subject: "0af76519".to_owned(),
                checks: 88,
            }],
            ..Figures::default()
        }
    }

    fn screen(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 16)).expect("a terminal in memory");
        let figures = figures();
        let drawn = terminal.draw(|frame| draw(frame, &figures, view));
        drawn.expect("a terminal in memory");
        terminal.backend().to_string()
    }

    #[test]
    fn screen_shows_rates_problems_rules_and_busy_subjects() {
        let shown = screen(&mut View::default());
        for text in [
            "120 allowed/s  30.0 denied/s (20.0%)",
            "! http://b: no [2J answer",
            "500 us",
            "25%",
            "rule (by denied)",
            "quota, shadow",
            "0af76519",
            "q quit",
        ] {
            assert!(shown.contains(text), "{text} is missing:\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'), "control characters are shown");
    }

    #[test]
    fn filter_hides_other_rules() {
        let mut view = View {
            filter: "log".to_owned(),
            is_typing: true,
            ..View::default()
        };
        let shown = screen(&mut view);
        assert!(
            shown.contains("login") && !shown.contains("gcra"),
            "{shown}"
        );
        assert!(shown.contains("filter: log_"), "{shown}");
    }

    #[test]
    fn small_terminal_is_no_panic() {
        for (width, height) in [(1, 1), (10, 3), (40, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
            let figures = figures();
            let drawn = terminal.draw(|frame| draw(frame, &figures, &mut View::default()));
            drawn.expect("a terminal in memory");
        }
    }
}
