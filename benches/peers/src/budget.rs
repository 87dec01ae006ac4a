//! The budget: instructions per operation of each work of ours, kept in a file. A change that makes a work dearer is seen
//! on any machine, loaded or not, because callgrind counts.

use crate::instructions::callgrind;
use crate::works::{Role, Work};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Share above its budget from which a work fails.
const MARGIN: f64 = 0.03;

const HEAD: &str = "\
# Instructions per operation of steadfast in each work of benches/peers, counted by callgrind (Rust RUST, x86-64).
# A work that takes more than 3 % above its number fails scripts/release-checks; ten works are also compared by scripts/verify.
# After a change that is worth its price: cargo run --release -- --write-budget ../budget.toml [WORK ...], in benches/peers.
";

/// Compares the works with the file. Writes the table, and fails if one of them is above its budget or has none.
pub fn check(
    path: &Path,
    works: &[&'static Work],
    mut say: impl FnMut(String) -> Result<(), String>,
) -> Result<(), String> {
    let budget = read(path)?;
    let mut above = Vec::new();
    say(format!("{:<28} {:>10} {:>10} {:>8}", "work", "budget", "now", "change"))?;
    for work in works {
        let now = count(work)?;
        let Some(&allowed) = budget.get(work.name) else {
            say(format!("{:<28} {:>10} {now:>10.0} {:>8}", work.name, "none", "-"))?;
            above.push(format!("{} has no budget", work.name));
            continue;
        };
        let change = now / allowed - 1.0;
        say(format!("{:<28} {allowed:>10.0} {now:>10.0} {:>+7.1} %", work.name, change * 100.0))?;
        if change > MARGIN {
            above.push(format!("{} ({}) takes {now:.0} instructions for {allowed:.0}", work.name, work.about));
        }
    }
    if above.is_empty() { Ok(()) } else { Err(format!("above the budget: {}", above.join("; "))) }
}

/// Writes the present numbers of the works into the file. Those of other works stay.
pub fn write(path: &Path, works: &[&'static Work]) -> Result<(), String> {
    let mut budget = if path.exists() { read(path)? } else { BTreeMap::new() };
    for work in works {
        budget.insert(work.name.to_owned(), count(work)?);
    }
    let mut text = HEAD.replace("RUST", &rust());
    for (name, instructions) in budget {
        let _ = writeln!(text, "{name} = {instructions:.0}");
    }
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the compiler's version: another one gives other numbers.
fn rust() -> String {
    let answer = std::process::Command::new("rustc").arg("--version").output();
    let text = answer.map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().nth(1).unwrap_or("of unknown version").to_owned()
}

fn count(work: &Work) -> Result<f64, String> {
    let subjects = (work.subjects)();
    let ours = subjects.iter().position(|subject| subject.role == Role::Ours);
    let ours = ours.ok_or_else(|| format!("{} has no subject of ours", work.name))?;
    callgrind(work, ours).ok_or_else(|| format!("{}: callgrind gave no count", work.name))
}

fn read(path: &Path) -> Result<BTreeMap<String, f64>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, number) = line.split_once('=')?;
        Some((name.trim().to_owned(), number.trim().parse().ok()?))
    };
    lines
        .map(|line| entry(line).ok_or_else(|| format!("{}: {line:?} must be `work = number`", path.display())))
        .collect()
}
