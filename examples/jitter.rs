//! The effect of jitter: clients contend for one row by optimistic concurrency, with four kinds of back-off.
//!
//! The simulation of Marc Brooker's "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015), beside its published figures, and
//! a plot. No server and no clock: the same output each time. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};
use steadfast::backoff::Jitter;

#[path = "common/mod.rs"]
mod common;
#[path = "common/contention.rs"]
mod contention;
use common::{end, no_arguments, say};
use contention::{PUBLISHED, means};

/// Number of runs for the means.
const RUNS: u64 = 30;
const ROWS: usize = 16;
const COLUMNS: usize = 60;

fn main() -> ExitCode {
    no_arguments(
        "Why delays are jittered: clients contend for one row by optimistic concurrency, and back off in four ways.",
    );
    end(show())
}

fn title(jitter: Jitter) -> &'static str {
    match jitter {
        Jitter::Full => "full",
        Jitter::Decorrelated => "decorrelated",
        Jitter::Equal => "equal",
        _ => "none",
    }
}

fn show() -> common::Result<(Value, bool)> {
    say(format!(
        "\n100 clients each write one row once; a write that lost the race backs off (means of {RUNS} runs)\n"
    ));
    say("  jitter           calls   published    seconds   published");
    let (mut rows, mut holds) = (Map::new(), true);
    for (jitter, calls, seconds) in PUBLISHED {
        let (our_calls, our_seconds) = means(jitter, 100, RUNS)?;
        say(format!("  {:<14} {our_calls:>7.0}   {calls:>9.0}   {our_seconds:>8.1}   {seconds:>9.1}", title(jitter)));
        rows.insert(
            title(jitter).into(),
            json!({ "calls": our_calls.round(), "seconds": (our_seconds * 10.0).round() / 10.0 }),
        );
        // As the test of the library: calls within 5 % of the published figures, times within 10 %.
        holds &= (our_calls / calls - 1.0).abs() < 0.05 && (our_seconds / seconds - 1.0).abs() < 0.10;
    }

    say("\n  calls, by the number of clients\n");
    let marks = ['f', 'd', 'e', 'n'];
    let clients = |column: usize| 1 + column * 99 / (COLUMNS - 1);
    let mut curves = Vec::new();
    for (jitter, _, _) in PUBLISHED {
        let curve: Result<Vec<_>, _> =
            (0..COLUMNS).map(|at| means(jitter, clients(at), 3).map(|(calls, _)| calls)).collect();
        curves.push(curve?);
    }
    let top = curves.iter().flatten().copied().fold(1.0, f64::max);
    let row_of = |calls: f64| ((calls / top) * (ROWS - 1) as f64).round() as usize;
    for row in (0..ROWS).rev() {
        let mut line = String::new();
        let label = if row % 5 == 0 { format!("{:.0}", top * row as f64 / (ROWS - 1) as f64) } else { String::new() };
        write!(line, "  {label:>5} |")?;
        for column in 0..COLUMNS {
            let here: Vec<_> = (0..curves.len()).filter(|i| row_of(curves[*i][column]) == row).collect();
            line.push(match here[..] {
                [] => ' ',
                [one] => marks[one],
                _ => '*',
            });
        }
        say(line.trim_end());
    }
    say(format!("        +{}", "-".repeat(COLUMNS)));
    say(format!("         {:<width$}{:>4}", 1, 100, width = COLUMNS - 4));
    say("         f full   d decorrelated   e equal   n none   * several");
    Ok((json!({ "clients": 100, "runs": RUNS, "jitter": rows }), holds))
}
