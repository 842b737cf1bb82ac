//! `tollgate top`: shows what one or more running servers do now, every second.

mod figures;
mod screen;

use std::io::IsTerminal;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;

use self::figures::{Figures, Order, Reading};
use self::screen::{INSTANCE_COLUMNS, View, instance_cells, rate, share};
use crate::admin::{AdminArgs, Call};
use crate::terminal::{Column, has_colour, table};
use crate::{CommandResult, failed};

/// How long `top` waits for the answer of an instance. A silent one must not stop the others.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the screen is drawn.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also show the instance with this admin door; can be repeated
    #[arg(long, value_name = "URL")]
    also: Vec<String>,

    /// Show only rules whose id contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    rule: String,

    /// How to sort the rules
    #[arg(long, value_enum, default_value_t)]
    sort: Order,

    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,

    /// Print the figures of one interval as text, and end
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let fleet = Fleet::new(args);
    let every = Duration::from_secs(args.every);
    let first = fleet.read();
    // A wrong address or token is an error. Later, an instance may be away for a while.
    if let [Err(problem)] = &first[..] {
        return Err(problem.clone());
    }
    if args.once {
        thread::sleep(every);
        let figures = Figures::new(&fleet.addresses, &first, &fleet.read());
        print!("{}", in_text(&figures, args));
        return Ok(true);
    }
    if !std::io::stdout().is_terminal() {
        return Err(
            "error: `top` needs a terminal\nhelp: use --once to print the figures".to_owned(),
        );
    }
    let mut view = View {
        order: args.sort,
        filter: args.rule.clone(),
        has_colour: has_colour(&std::io::stdout()),
        ..View::default()
    };
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, fleet, first, every, &mut view);
    ratatui::restore();
    shown.map_err(failed)?;
    Ok(true)
}

/// The instances to show.
struct Fleet {
    addresses: Vec<String>,
    doors: Vec<AdminArgs>,
}

impl Fleet {
    fn new(args: &Args) -> Fleet {
        let others = args.also.iter().map(|address| args.admin.at(address));
        let doors: Vec<AdminArgs> = [args.admin.clone()].into_iter().chain(others).collect();
        Fleet {
            addresses: doors.iter().map(|it| it.address().to_owned()).collect(),
            doors,
        }
    }

    /// Asks all instances at the same time.
    fn read(&self) -> Reading {
        let ask = |door: &AdminArgs| -> Result<Value, String> {
            Ok(door.call_within(PATIENCE, "/v1/overview", &Call::Get(&[]))?)
        };
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .doors
                .iter()
                .map(|door| scope.spawn(|| ask(door)))
                .collect();
            let panicked = || Err("error: the request ended with a panic".to_owned());
            let answers = asked
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|_| panicked()));
            answers.collect()
        })
    }
}

/// Shows the figures until the user leaves.
fn show(
    terminal: &mut DefaultTerminal,
    fleet: Fleet,
    mut before: Reading,
    every: Duration,
    view: &mut View,
) -> std::io::Result<()> {
    let addresses = fleet.addresses.clone();
    let mut figures = Figures::new(&addresses, &before, &before);
    // A slow instance must not hold up the keys, so another thread asks. It ends with the process.
    let (sender, readings) = mpsc::sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(every);
            if sender.send(fleet.read()).is_err() {
                break;
            }
        }
    });
    loop {
        terminal.draw(|frame| screen::draw(frame, &figures, view))?;
        if event::poll(LOOK_EVERY)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
            if press(key.code, has_control, view) == Next::Leave {
                return Ok(());
            }
        }
        if let Ok(after) = readings.try_recv() {
            figures = Figures::new(&addresses, &before, &after);
            before = after;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stay,
    Leave,
}

/// Follows a key.
fn press(key: KeyCode, has_control: bool, view: &mut View) -> Next {
    match key {
        KeyCode::Char('c') if has_control => return Next::Leave,
        KeyCode::Enter if view.is_typing => view.is_typing = false,
        KeyCode::Esc if view.is_typing => {
            view.is_typing = false;
            view.filter.clear();
        }
        KeyCode::Backspace if view.is_typing => {
            view.filter.pop();
        }
        KeyCode::Char(letter) if view.is_typing => view.filter.push(letter),
        KeyCode::Char('q') | KeyCode::Esc => return Next::Leave,
        KeyCode::Char('s') => view.order = view.order.next(),
        KeyCode::Char('/') => view.is_typing = true,
        KeyCode::Up | KeyCode::Char('k') => view.rules.scroll_up_by(1),
        KeyCode::Down | KeyCode::Char('j') => view.rules.scroll_down_by(1),
        KeyCode::PageUp => view.rules.scroll_up_by(10),
        KeyCode::PageDown => view.rules.scroll_down_by(10),
        _ => {}
    }
    Next::Stay
}

/// Writes the figures as text.
fn in_text(figures: &Figures, args: &Args) -> String {
    let mut text = format!(
        "{} allowed/s, {} denied/s ({}), {} without a rule/s, {} by failure policies/s\n",
        rate(figures.allowed),
        rate(figures.denied),
        share(figures.allowed, figures.denied),
        rate(figures.unmatched),
        rate(figures.fallbacks),
    );
    for problem in &figures.problems {
        text += &format!("! {}\n", crate::terminal::printable(problem));
    }
    let mut columns: [Column; 8] = INSTANCE_COLUMNS.map(|name| (name, true));
    (columns[0].1, columns[1].1) = (false, false);
    let instances = 0..figures.instances.len();
    let rows: Vec<[String; 8]> = instances
        .map(|place| instance_cells(figures, place))
        .collect();
    text += &format!("\n{}", table(columns, &rows));
    let columns: [Column; 7] = [
        ("rule", false),
        ("algorithm", false),
        ("allowed/s", true),
        ("denied/s", true),
        ("share", true),
        ("near limit/s", true),
        ("would deny/s", true),
    ];
    let rules = figures.sorted(args.sort, &args.rule).into_iter();
    let rows: Vec<[String; 7]> = rules
        .map(|rule| {
            [
                rule.id.clone(),
                rule.algorithm.clone(),
                rate(rule.allowed),
                rate(rule.denied),
                share(rule.allowed, rule.denied),
                rate(rule.near_limit),
                rate(rule.shadow_denied),
            ]
        })
        .collect();
    text += &format!("\n{}", table(columns, &rows));
    if !figures.hot_keys.is_empty() {
        let columns = [
            ("busy subject", false),
            ("rule", false),
            ("recent checks", true),
        ];
        let hot_keys = figures.hot_keys.iter();
        let rows: Vec<[String; 3]> = hot_keys
            .map(|it| [it.subject.clone(), it.rule.clone(), it.checks.to_string()])
            .collect();
        text += &format!("\n{}", table(columns, &rows));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_filter_sort_and_leave() {
        let mut view = View::default();
        let press = |key, view: &mut View| press(key, false, view);
        assert_eq!(press(KeyCode::Char('s'), &mut view), Next::Stay);
        assert_eq!(view.order, Order::Allowed);
        for key in ['/', 'q', 's'] {
            assert_eq!(press(KeyCode::Char(key), &mut view), Next::Stay);
        }
        assert_eq!(view.filter, "qs");
        press(KeyCode::Backspace, &mut view);
        press(KeyCode::Enter, &mut view);
        assert_eq!((view.filter.as_str(), view.is_typing), ("q", false));
        assert_eq!(press(KeyCode::Char('q'), &mut view), Next::Leave);
    }

    #[test]
    fn control_c_leaves_also_while_typing() {
        let mut view = View {
            is_typing: true,
            ..View::default()
        };
        assert_eq!(press(KeyCode::Char('c'), true, &mut view), Next::Leave);
    }
}
