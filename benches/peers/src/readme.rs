//! The tables of README.md and of the page of comparisons, made from one run. README has ten rows. The page has the rows that it
//! always has, and every row of that run that loses.

use crate::harness::{Figures, Table};
use crate::works::Role;
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- figures: made by scripts/figures -->\n";
const END: &str = "<!-- end of figures -->\n";

/// From here on a ratio is one that loses.
const LOSES: f64 = 1.05;

/// The works that are always quoted, with what the reader calls them; and which of our subjects, where it is not the one
/// that the ratio is of.
const ROWS: &[(&str, Option<&str>, &str)] = &[
    ("stack", None, "time-out > retry > breaker > time-out"),
    ("stack_pending", None, "the same, pending once"),
    ("breaker_closed", None, "breaker, closed"),
    ("breaker_closed_1_percent", None, "breaker, closed, 1 % fail"),
    ("breaker_open", None, "breaker, open"),
    ("timeout", None, "time-out, ready at once"),
    ("timeout_pending", None, "time-out, pending once"),
    ("retry", None, "retry, succeeds at once"),
    ("fallback_used", None, "fallback, used"),
    ("permit", None, "concurrency permit"),
    ("rate_limit", None, "rate limit, allowed, feature `quanta`"),
    ("rate_limit", Some(DEFAULT), "rate limit, allowed, default clock"),
    ("rate_limit_denied", None, "rate limit, denied, feature `quanta`"),
    ("rate_limit_denied", Some(DEFAULT), "rate limit, denied, default clock"),
    ("keyed_10k", None, "rate limit, 10,000 keys, feature `quanta`"),
    ("keyed_10k", Some(DEFAULT), "rate limit, 10,000 keys, default clock"),
    ("cache_hit", None, "cache, a hit, with expiry and the guard, feature `quanta`"),
    ("cache_hit", Some(DEFAULT), "cache, a hit, with expiry and the guard, default clock"),
    ("cache_miss", None, "cache, a miss whose loader is ready, feature `quanta`"),
    ("cache_miss", Some(DEFAULT), "cache, a miss whose loader is ready, default clock"),
];

/// The works of README, five that win and five that lose, each with the subject as above.
const FEW: [(&str, Option<&str>); 10] = [
    ("stack", None),
    ("stack_pending", None),
    ("breaker_closed", None),
    ("timeout", None),
    ("permit", None),
    ("breaker_open", None),
    ("timeout_pending", None),
    ("retry", None),
    ("rate_limit", Some(DEFAULT)),
    ("cache_hit", Some(DEFAULT)),
];

const DEFAULT: &str = "steadfast (tokio clock)";

/// Puts a table between the two markers of the file.
pub fn rewrite(path: &Path, table: &str) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(at)?;
    let (before, rest) = text.split_once(BEGIN).ok_or_else(|| format!("{}: no line {BEGIN}", path.display()))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{}: no line {END}", path.display()))?;
    std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).map_err(at)
}

/// Returns the table of README.
pub fn few(tables: &[Table]) -> Result<String, String> {
    let mut text = "| a call | ours | best rival | ratio |\n|---|---|---|---|\n".to_string();
    for (work, subject) in FEW {
        let alone = find(tables, work, 1).ok_or_else(|| left_out(work))?;
        let label = ROWS.iter().find(|(quoted, of, _)| *quoted == work && *of == subject).map_or(work, |row| row.2);
        let (Some(ours), Some(best)) = (ours(alone, subject), alone.best()) else { continue };
        let _ = writeln!(
            text,
            "| {label} | {} | {}, {} | {} |",
            nanoseconds(ours.median_ns),
            best.name,
            nanoseconds(best.median_ns),
            emphasised(ratio(alone, subject)),
        );
    }
    Ok(text)
}

fn left_out(work: &str) -> String {
    format!("the table quotes {work}, which this run left out")
}

/// Returns the table of the page.
pub fn markdown(tables: &[Table]) -> Result<String, String> {
    let mut text = "| work | ours | best rival | ratio | ratio, 2 threads | allocations |\n|---|---|---|---|---|---|\n"
        .to_string();
    for &(work, subject, label) in ROWS {
        let alone = find(tables, work, 1).ok_or_else(|| left_out(work))?;
        row(&mut text, tables, alone, subject, label);
    }
    let loses = |table: &Table| table.ratio().is_some_and(|ratio| ratio > LOSES);
    for table in tables.iter().filter(|table| table.threads == 1) {
        let work = table.work;
        let together = find(tables, work.name, 2);
        if (loses(table) || together.is_some_and(loses)) && ROWS.iter().all(|(quoted, ..)| *quoted != work.name) {
            row(&mut text, tables, table, None, &format!("`{}`: {}", work.name, work.about));
        }
    }
    Ok(text)
}

fn find<'t>(tables: &'t [Table], work: &str, threads: usize) -> Option<&'t Table> {
    tables.iter().find(|table| table.work.name == work && table.threads == threads)
}

/// Ours in one table: the subject of this name, or the one that the ratio is of.
fn ours<'t>(table: &'t Table, subject: Option<&str>) -> Option<&'t Figures> {
    match subject {
        Some(name) => table.figures.iter().find(|figures| figures.name == name),
        None => table.ours(),
    }
}

fn ratio(table: &Table, subject: Option<&str>) -> Option<f64> {
    Some(ours(table, subject)?.median_ns / table.best()?.median_ns)
}

fn row(text: &mut String, tables: &[Table], alone: &Table, subject: Option<&str>, label: &str) {
    let (Some(ours), Some(best)) = (ours(alone, subject), alone.best()) else { return };
    let together = find(tables, alone.work.name, 2).and_then(|table| ratio(table, subject));
    let _ = writeln!(
        text,
        "| {label} | {} | {}, {} | {} | {} | {} |",
        nanoseconds(ours.median_ns),
        best.name,
        nanoseconds(best.median_ns),
        emphasised(ratio(alone, subject)),
        emphasised(together),
        if ours.allocations < 0.005 { "0".into() } else { format!("{:.0}", ours.allocations) },
    );
}

fn nanoseconds(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn emphasised(ratio: Option<f64>) -> String {
    match ratio {
        Some(ratio) if ratio > LOSES => format!("**{ratio:.2}**"),
        Some(ratio) => format!("{ratio:.2}"),
        None => String::new(),
    }
}

/// One line a work that has a rival: the slowest beside its rival first.
pub fn ranking(tables: &[Table]) -> String {
    let mut ranked: Vec<_> = tables.iter().filter_map(|table| Some((table.ratio()?, table))).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let slower = ranked.iter().filter(|(ratio, _)| *ratio > LOSES).count();
    let mut text = format!("{slower} of {} are slower than the best rival (ratio above {LOSES})\n", ranked.len());
    text += "work\tthreads\tours_ns\tbest\tbest_ns\tratio\tallocs\tinstructions\tbest_instructions\n";
    let count = |figures: Option<&Figures>| {
        figures.and_then(|figures| figures.instructions).map_or("-".into(), |count| format!("{count:.0}"))
    };
    for (ratio, table) in ranked {
        let (ours, best) = (table.figures.iter().find(|figures| figures.role == Role::Ours), table.best());
        let (Some(figures), Some(rival)) = (ours, best) else { continue };
        let _ = writeln!(
            text,
            "{}\t{}\t{:.2}\t{}\t{:.2}\t{ratio:.2}\t{:.2}\t{}\t{}",
            table.work.name,
            table.threads,
            figures.median_ns,
            rival.name,
            rival.median_ns,
            figures.allocations,
            count(ours),
            count(best),
        );
    }
    text
}
