//! Printing: a table to read, or one JSON object a line.

use crate::harness::{Figures, Table};
use crate::works::Role;
use std::fmt::Write;

pub fn table(table: &Table) -> String {
    let mut text = String::new();
    let threads = if table.threads == 1 { "1 thread" } else { "2 threads, one shared instance" };
    let _ = writeln!(text, "{} ({threads}): {}", table.work.name, table.work.about);
    let _ = writeln!(text, "  {:<42} {:>9} {:>9} {:>8} {:>7} {:>7}", "", "ns", "min", "instr", "allocs", "B/key");
    for figures in &table.figures {
        let mark = if figures.role == Role::Ours { "> " } else { "  " };
        let name = match figures.role {
            Role::Beside => format!("[{}]", figures.name),
            _ => figures.name.to_string(),
        };
        let _ = writeln!(
            text,
            "{mark}{name:<42} {:>9} {:>9} {:>8} {:>7} {:>7}",
            nanoseconds(figures.median_ns),
            nanoseconds(figures.min_ns),
            or_dash(figures.instructions),
            round(figures.allocations),
            or_dash(figures.bytes_per_key),
        );
    }
    match (table.ratio(), table.best()) {
        (Some(ratio), Some(best)) => {
            let _ = writeln!(text, "  ratio {ratio:.2} to {}", best.name);
        }
        (None, Some(best)) => {
            let _ = writeln!(text, "  ratio - (best rival: {})", best.name);
        }
        _ => {
            let _ = writeln!(text, "  ratio - (no rival does this)");
        }
    }
    text
}

/// Hundredths of them are noise from 10 us on.
fn nanoseconds(number: f64) -> String {
    if number < 10_000.0 { format!("{number:.2}") } else { format!("{number:.0}") }
}

/// One line; what does not apply is null.
pub fn json(table: &Table) -> String {
    let (ours, best) = (table.ours(), table.best());
    let all: Vec<String> = table.figures.iter().map(subject).collect();
    format!(
        "{{\"work\":{},\"threads\":{},\"ours_ns\":{},\"best\":{},\"best_ns\":{},\"ratio\":{},\"ours_allocs\":{},\
         \"ours_min_ns\":{},\"ours_instructions\":{},\"ours_bytes_per_key\":{},\"all\":[{}]}}",
        quoted(table.work.name),
        table.threads,
        or_null(ours.map(|it| it.median_ns)),
        best.map_or("null".into(), |it| quoted(it.name)),
        or_null(best.map(|it| it.median_ns)),
        or_null(table.ratio()),
        or_null(ours.map(|it| it.allocations)),
        or_null(ours.map(|it| it.min_ns)),
        or_null(ours.and_then(|it| it.instructions)),
        or_null(ours.and_then(|it| it.bytes_per_key)),
        all.join(","),
    )
}

fn subject(figures: &Figures) -> String {
    let role = match figures.role {
        Role::Ours => "ours",
        Role::Rival => "rival",
        Role::Beside => "beside",
    };
    format!(
        "{{\"name\":{},\"role\":\"{role}\",\"ns\":{},\"min_ns\":{},\"instructions\":{},\"allocs\":{},\"bytes_per_key\":{}}}",
        quoted(figures.name),
        or_null(Some(figures.median_ns)),
        or_null(Some(figures.min_ns)),
        or_null(figures.instructions),
        or_null(Some(figures.allocations)),
        or_null(figures.bytes_per_key),
    )
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn or_null(number: Option<f64>) -> String {
    number
        .filter(|number| number.is_finite())
        .map_or("null".into(), |number| format!("{}", (number * 1000.0).round() / 1000.0))
}

fn or_dash(number: Option<f64>) -> String {
    number.map_or("-".into(), |number| format!("{number:.0}"))
}

/// Whole where it is whole: allocations mostly are.
fn round(number: f64) -> String {
    if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.2}") }
}
