//! Three times the capacity for a minute, on a manual clock: the requests served with a time-out only, with an
//! adaptive limit that keeps shares by priority, and with load shedding.
//!
//! The service does 100 requests a second. In the overload come 40 of high priority, 100 of normal and 160 of low. Printed are a plot of each run,
//! a table, and the promises with their results; the last line is the result as JSON. All runs with one seed print the same.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod simulation;

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::Parser;
use serde_json::{Value, json};
use simulation::{BEGINS, CLASSES, Client, Count, ENDS, LASTS, Report, STEP, run};
use steadfast::Priority::{self, High, Low, Normal};

/// A service under three times its capacity, and three ways to call it.
#[derive(Parser)]
struct Args {
    /// Seed of all random choices: arrivals, service times, shed requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (text, kept) = show(args.seed, io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) if kept => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// A run, the same run with high requests only, and its name.
struct Run {
    client: Client,
    what: &'static str,
    all: Report,
    solo: Report,
}

fn show(seed: u64, colours: bool) -> (String, bool) {
    let runs = [
        (Client::Naive, "naive", "a time-out alone"),
        (Client::Limiter, "limiter", "an adaptive limit with shares by priority"),
        (Client::Shedder, "shedder", "shedding by priority while the service says that work has piled up"),
    ];
    let runs = runs.map(|(client, name, what)| {
        (name, Run { client, what, all: run(client, &CLASSES, seed), solo: run(client, &[High], seed) })
    });
    let mut text = String::new();
    let mut results = serde_json::Map::new();
    let mut kept = true;
    for (name, run) in &runs {
        let _ = writeln!(text, "\n{name}: {}\n{}", run.what, Plot { report: &run.all, colours });
    }
    let _ = writeln!(text, "{}", Plot::legend(colours));
    let _ = writeln!(text, "{}", table(&runs));
    for (name, run) in &runs {
        if run.client == Client::Naive {
            let after = sum(run, ENDS, LASTS);
            let _ = writeln!(
                text,
                "         {name}: promises nothing; when all is over it serves {} of {}",
                after.served, after.offered
            );
        } else {
            for (promise, is_kept) in promises(run) {
                let _ = writeln!(text, "  {} {name}: {promise}", if is_kept { "kept  " } else { "BROKEN" });
                kept &= is_kept;
            }
        }
        results.insert((*name).to_owned(), result(run));
    }
    let summary = json!({ "seed": seed, "kept": kept, "clients": results });
    let _ = writeln!(text, "\nsummary: {summary}");
    (text, kept)
}

// ---- promises ------------------------------------------------------------------------------------------------------

fn share(part: u32, of: u32) -> f64 {
    f64::from(part) / f64::from(of.max(1))
}

/// Served high requests of the overload, as a share of those served without other classes.
fn kept(run: &Run) -> f64 {
    share(run.all.of(High, BEGINS, ENDS).served, run.solo.of(High, BEGINS, ENDS).served)
}

/// The steps of the overload without the first, in which the client adapts.
fn steps() -> impl Iterator<Item = (u64, u64)> {
    (BEGINS + STEP..ENDS).step_by(STEP as usize).map(|from| (from, from + STEP))
}

/// The spread of served requests over the steps, as a share of their mean.
fn swing(run: &Run) -> f64 {
    let served = &run.all.served()[((BEGINS + STEP) / STEP) as usize..(ENDS / STEP) as usize];
    let (least, most) = (served.iter().min().copied().unwrap_or(0), served.iter().max().copied().unwrap_or(0));
    share(most - least, served.iter().sum::<u32>() / served.len().max(1) as u32)
}

/// Seconds from the end of the overload to the last step in which more than a tenth of the requests failed.
fn recovery(run: &Run) -> u64 {
    let bad = (ENDS..LASTS).step_by(STEP as usize).filter(|from| {
        let count = sum(run, *from, from + STEP);
        share(count.served, count.offered) < 0.9
    });
    bad.last().map_or(0, |from| from + STEP - ENDS)
}

fn sum(run: &Run, from: u64, to: u64) -> Count {
    CLASSES.iter().fold(Count::default(), |sum, class| {
        let count = run.all.of(*class, from, to);
        Count {
            offered: sum.offered + count.offered,
            served: sum.served + count.served,
            shed: sum.shed + count.shed,
            late: sum.late + count.late,
        }
    })
}

fn promises(run: &Run) -> Vec<(String, bool)> {
    let served = sum(run, BEGINS + STEP, ENDS).served;
    let capacity = 100 * (ENDS - BEGINS - STEP) as u32;
    let first = steps().all(|(from, to)| {
        let [high, normal, low] = CLASSES.map(|class| {
            let count = run.all.of(class, from, to);
            share(count.served, count.offered)
        });
        high >= normal && normal > low && (low < 0.05 || normal > 0.95)
    });
    vec![
        (format!("high priority keeps {:.1} % of its calls served alone (95 %)", kept(run) * 100.0), kept(run) >= 0.95),
        ("low priority is shed first: nearly all of it before a normal request in twenty".to_owned(), first),
        (format!("it serves {served} of the {capacity} that could be (95 %)"), share(served, capacity) >= 0.95),
        (
            format!("it does not swing: {:.1} % from the worst 5 s to the best (25 %)", swing(run) * 100.0),
            swing(run) <= 0.25,
        ),
        (format!("it is well again {} s after the overload (5 s)", recovery(run)), recovery(run) <= 5),
    ]
}

fn result(run: &Run) -> Value {
    let classes = CLASSES.iter().map(|class| {
        let count = run.all.of(*class, BEGINS, ENDS);
        let value = json!({ "offered": count.offered, "served": count.served, "shed": count.shed, "late": count.late });
        (class.to_string(), value)
    });
    json!({
        "overload": classes.collect::<serde_json::Map<_, _>>(),
        "high_kept": round(kept(run)),
        "high_p99_ms": run.all.high_p99().as_millis() as u64,
        "swing": round(swing(run)),
        "recovered_after_s": recovery(run),
    })
}

fn round(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

// ---- the table --------------------------------------------------------------------------------------------------------------

fn table(runs: &[(&str, Run)]) -> String {
    let mut text = format!(
        "{:<9}{:<9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>11}{:>10}\n",
        "client", "priority", "offered", "served", "", "shed", "late", "of alone", "p99"
    );
    let _ = writeln!(text, "{}", "─".repeat(82));
    for (name, run) in runs {
        for class in CLASSES {
            let count = run.all.of(class, BEGINS, ENDS);
            let (alone, p99) = match class {
                High => (format!("{:.1} %", kept(run) * 100.0), format!("{} ms", run.all.high_p99().as_millis())),
                _ => (String::new(), String::new()),
            };
            let _ = writeln!(
                text,
                "{:<9}{:<9}{:>9}{:>9}{:>6.1} %{:>9}{:>8}{alone:>11}{p99:>10}",
                if class == High { *name } else { "" },
                class.as_str(),
                count.offered,
                count.served,
                share(count.served, count.offered) * 100.0,
                count.shed,
                count.late,
            );
        }
    }
    text
}

// ---- the plot ---------------------------------------------------------------------------------------------------------------

/// Requests per second over time: served ones by priority from below, the others above.
struct Plot<'a> {
    report: &'a Report,
    colours: bool,
}

/// Height of a plot line, in requests per second.
const LINE: f64 = 20.0;
const LINES: u32 = 15;

/// The result of a request: a character, and one of 256 colours.
const fn ink(class: Option<Priority>, late: bool) -> (char, u8) {
    match class {
        Some(High) => ('█', 25),
        Some(Normal) => ('▓', 68),
        Some(_) => ('▒', 110),
        None if late => ('×', 160),
        None => ('·', 244),
    }
}

fn paint(sign: (char, u8), times: usize, colours: bool) -> String {
    let signs = sign.0.to_string().repeat(times);
    if colours { format!("\x1b[38;5;{}m{signs}\x1b[0m", sign.1) } else { signs }
}

impl Plot<'_> {
    /// Returns the mark at this height in a step.
    fn at(&self, step: &[Count; 3], rate: f64) -> Option<(char, u8)> {
        let second = |n: u32| f64::from(n) / STEP as f64;
        let mut top = 0.0;
        for (class, count) in CLASSES.into_iter().zip(step) {
            top += second(count.served);
            if rate < top {
                return Some(ink(Some(class), false));
            }
        }
        for late in [true, false] {
            top += step.iter().map(|count| second(if late { count.late } else { count.shed })).sum::<f64>();
            if rate < top {
                return Some(ink(None, late));
            }
        }
        None
    }

    fn legend(colours: bool) -> String {
        let signs = [
            (ink(Some(High), false), "high"),
            (ink(Some(Normal), false), "normal"),
            (ink(Some(Low), false), "low: served"),
            (ink(None, false), "refused at once"),
            (ink(None, true), "too late"),
        ];
        signs.map(|(sign, what)| format!("{} {what}", paint(sign, 2, colours))).join("   ") + "\n"
    }
}

impl fmt::Display for Plot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>7}requests a second", "")?;
        for line in (0..LINES).rev() {
            let rate = (f64::from(line) + 0.5) * LINE;
            // The axis names full hundreds; the service can do the first of them.
            let label = match (line + 1) * LINE as u32 {
                full if full.is_multiple_of(100) => format!("{full:>5} ┤"),
                _ => format!("{:>5} │", ""),
            };
            write!(f, "{label}")?;
            let signs: String = self
                .report
                .steps
                .iter()
                .map(|step| match self.at(step, rate) {
                    Some(sign) => paint(sign, 3, self.colours),
                    None => "   ".to_owned(),
                })
                .collect();
            writeln!(f, "{}", signs.trim_end())?;
        }
        let width = (LASTS / STEP) as usize * 3;
        writeln!(f, "{:>5} └{}", 0, "─".repeat(width))?;
        let mut axis = vec![' '; width + 4];
        for (second, what) in [(0, "0 s"), (BEGINS, "overload"), (ENDS, "over"), (LASTS, "120")] {
            let at = (second / STEP) as usize * 3;
            axis.splice(at..at + what.len().min(axis.len() - at), what.chars());
        }
        writeln!(f, "{:>7}{}", "", axis.into_iter().collect::<String>().trim_end())
    }
}
