//! Throughput, leaders and faults over time: as text for the terminal, and as SVG.
use std::fmt::{self, Write};

use crate::{
    faults::{Fault, Kind},
    judge::Run,
    log::Fact,
};

/// Columns of the text.
const COLUMNS: usize = 100;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Figures of one column.
#[derive(Debug, Clone, Default)]
struct Column {
    accepted: usize,
    done: usize,
    /// The process that wrote as the leader last.
    leader: Option<usize>,
}

fn columns(run: &Run<'_>) -> (Vec<Column>, u64) {
    let end = run.logs.told().iter().map(|told| told.at).max().unwrap_or(run.close).max(run.begin + 1);
    let width = (end - run.begin).div_ceil(COLUMNS as u64).max(1);
    let mut columns = vec![Column::default(); COLUMNS];
    for told in run.logs.told() {
        let at = told.at.saturating_sub(run.begin) / width;
        let Some(column) = columns.get_mut(at as usize) else { continue };
        match told.fact {
            Fact::Accepted { .. } => column.accepted += 1,
            Fact::Done { .. } => column.done += 1,
            Fact::Wrote { .. } => column.leader = Some(told.node),
            _ => {}
        }
    }
    (columns, width)
}

/// Draws the run as lines of text.
pub fn draw(run: &Run<'_>, say: impl Fn(String)) {
    let (columns, width) = columns(run);
    let bars = |of: fn(&Column) -> usize| -> String {
        let most = columns.iter().map(of).max().unwrap_or(0).max(1);
        columns.iter().map(|column| BARS[(of(column) * 8).div_ceil(most).min(8)]).collect()
    };
    let rate = |of: fn(&Column) -> usize| columns.iter().map(of).max().unwrap_or(0) as f64 * 1e3 / width as f64;
    let leader = |column: &Column| column.leader.map_or('·', |node| char::from_digit(node as u32, 36).unwrap_or('?'));
    say(format!("  accepted |{}| up to {:.0}/s", bars(|column| column.accepted), rate(|column| column.accepted)));
    say(format!("  done     |{}| up to {:.0}/s", bars(|column| column.done), rate(|column| column.done)));
    say(format!("  leader   |{}| the process that writes", columns.iter().map(leader).collect::<String>()));
    for (kind, name, mark) in [
        (Kind::Kill, "kills", 'x'),
        (Kind::Pause, "pauses", '='),
        (Kind::Cut, "cuts", '/'),
        (Kind::Restart, "restarts", '#'),
        (Kind::Gateway, "gateway", 'v'),
    ] {
        let is = |column: usize| {
            let (from, until) = (run.begin + column as u64 * width, run.begin + (column as u64 + 1) * width);
            run.faults.iter().any(|fault| fault.kind == kind && fault.from < until && fault.until >= from)
        };
        let marks: String = (0..COLUMNS).map(|column| if is(column) { mark } else { ' ' }).collect();
        let count = run.faults.iter().filter(|fault| fault.kind == kind).count();
        say(format!("  {name:<8} |{marks}| {count}"));
    }
    say(format!("            0 s {:>96.1} s\n", width as f64 * COLUMNS as f64 / 1e3));
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 24.0;
const HEIGHT: f64 = 430.0;

/// Draws the run as SVG.
pub fn svg(run: &Run<'_>) -> String {
    let mut out = String::new();
    // Writing to a `String` does not fail.
    let _ = write_svg(&mut out, run);
    out
}

fn write_svg(out: &mut impl Write, run: &Run<'_>) -> fmt::Result {
    let (columns, width) = columns(run);
    let seconds = width as f64 * COLUMNS as f64 / 1e3;
    let x = |second: f64| LEFT + second / seconds * (WIDTH - LEFT - RIGHT);
    let title = format!("{} processes over one {}", run.args.processes, run.engine.place());
    writeln!(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' font-family='system-ui, sans-serif' font-size='12'>\n\
         <title>{title}</title>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='{LEFT}' y='26' font-size='17' font-weight='600'>{title}</text>"
    )?;
    let most = columns.iter().map(|column| column.accepted.max(column.done)).max().unwrap_or(1).max(1) as f64;
    let most = (most * 1e3 / width as f64).max(1.0);
    for (name, colour, of, dx) in [
        ("orders accepted a second", "#1f77b4", (|column| column.accepted) as fn(&Column) -> usize, 0.0),
        ("orders done a second", "#2ca02c", |column| column.done, 220.0),
    ] {
        let y = |column: &Column| 190.0 - of(column) as f64 * 1e3 / width as f64 / most * 120.0;
        let middle = |at: usize| (at as f64 + 0.5) * width as f64 / 1e3;
        let points = columns.iter().enumerate().map(|(at, column)| format!("{:.1},{:.1}", x(middle(at)), y(column)));
        let points = points.collect::<Vec<_>>().join(" ");
        writeln!(out, "<text x='{}' y='56' fill='{colour}' font-weight='600'>{name}</text>", LEFT + dx)?;
        writeln!(out, "<polyline fill='none' stroke='{colour}' stroke-width='1.6' points='{points}'/>")?;
    }
    for (y, text) in [(190.0, "0".to_owned()), (70.0, format!("{most:.0}"))] {
        writeln!(out, "<text x='{}' y='{}' text-anchor='end'>{text}</text>", LEFT - 8.0, y + 4.0)?;
        writeln!(out, "<line x1='{LEFT}' x2='{}' y1='{y}' y2='{y}' stroke='#dfe3e8'/>", WIDTH - RIGHT)?;
    }
    writeln!(out, "<text x='{}' y='224' text-anchor='end'>leader</text>", LEFT - 8.0)?;
    for (at, column) in columns.iter().enumerate() {
        let Some(node) = column.leader else { continue };
        let (from, hue) = (at as f64 * width as f64 / 1e3, node * 360 / run.args.processes as usize);
        let wide = x(width as f64 / 1e3) - x(0.0);
        writeln!(out, "<rect x='{:.1}' y='212' width='{wide:.1}' height='16' fill='hsl({hue},60%,60%)'/>", x(from))?;
    }
    let lanes = [Kind::Kill, Kind::Pause, Kind::Cut, Kind::Restart, Kind::Gateway];
    for (lane, kind) in lanes.into_iter().enumerate() {
        let y = 250.0 + 28.0 * lane as f64;
        let name = format!("{kind:?}").to_lowercase();
        writeln!(out, "<text x='{}' y='{}' text-anchor='end'>{name}</text>", LEFT - 8.0, y + 12.0)?;
        for Fault { from, until, .. } in run.faults.iter().filter(|fault| fault.kind == kind) {
            let second = |at: u64| at.saturating_sub(run.begin) as f64 / 1e3;
            let wide = (x(second(*until)) - x(second(*from))).max(2.0);
            writeln!(out, "<rect x='{:.1}' y='{y}' width='{wide:.1}' height='16' fill='#d62728'/>", x(second(*from)))?;
        }
    }
    for tick in 0..=6 {
        let second = seconds * f64::from(tick) / 6.0;
        writeln!(out, "<text x='{:.1}' y='412' text-anchor='middle'>{second:.0} s</text>", x(second))?;
    }
    writeln!(out, "</svg>")
}
