//! How does cost grow with the number of processes, rows, bytes and callers? Counted in virtual time. See README.md.

mod alloc;
mod bodies;
mod callers;
mod counted;
mod death;
mod plot;
mod processes;
mod rooms;
#[cfg(feature = "servers")]
#[path = "../../../tests/engines/server/mod.rs"]
mod server;
mod sizes;
mod table;
#[cfg(test)]
mod tests;
mod world;

use std::{io::Write, path::PathBuf, process::ExitCode};

use bodies::Way;
use death::Owned;
use plot::{Line, Plot};
use rooms::Room;
use sizes::Subject;
use table::{Table, grouped};

const USAGE: &str = "\
usage: steadfast-scale [--quick] [--plots FOLDER] [--only TEXT] [LAW ...]

  LAW             processes, death, sizes, bodies, callers (all by default)
  --quick         few processes and small sizes
  --plots FOLDER  writes a plot of each law to this folder
  --only TEXT     only rows whose name contains this text";

struct Options {
    quick: bool,
    plots: Option<PathBuf>,
    only: String,
    laws: Vec<String>,
}

const LAWS: [&str; 5] = ["processes", "death", "sizes", "bodies", "callers"];

fn main() -> ExitCode {
    match arguments().and_then(|options| work(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steadfast-scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Options, String> {
    let mut options = Options { quick: false, plots: None, only: String::new(), laws: Vec::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => options.quick = true,
            "--plots" => options.plots = Some(words.next().ok_or("--plots wants a folder")?.into()),
            "--only" => options.only = words.next().ok_or("--only wants a text")?,
            law if LAWS.contains(&law) => options.laws.push(law.to_owned()),
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    if options.laws.is_empty() {
        options.laws = LAWS.map(str::to_owned).into();
    }
    Ok(options)
}

/// A table, the plots of its law, and the rules that are broken.
#[derive(Default)]
struct Printed {
    text: String,
    plots: Vec<(String, Plot)>,
    broken: Vec<String>,
}

/// Prints the table of each law, and returns `true` if all hold.
fn work(options: &Options) -> Result<bool, String> {
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    let mut broken = Vec::new();
    for law in &options.laws {
        let printed = match law.as_str() {
            "processes" => of_processes(options),
            "death" => of_death(options),
            "sizes" => of_sizes(options),
            "bodies" => of_bodies(),
            _ => of_callers(options.quick),
        };
        say(printed.text)?;
        broken.extend(printed.broken);
        if let Some(folder) = &options.plots {
            for (name, plot) in printed.plots {
                let file = folder.join(format!("{name}.svg"));
                std::fs::write(&file, plot.svg()).map_err(|e| format!("{}: {e}", file.display()))?;
            }
        }
    }
    for rule in &broken {
        say(format!("BROKEN: {rule}"))?;
    }
    Ok(broken.is_empty())
}

fn of_processes(options: &Options) -> Printed {
    let sizes: &[usize] = if options.quick { &[1, 10, 100] } else { &[1, 10, 100, 1000] };
    let (mut table, mut all, mut broken) = (processes::table(sizes), Vec::new(), Vec::new());
    for room in Room::ALL.into_iter().filter(|room| room.name().contains(&options.only)) {
        for load in [false, true] {
            let growth = processes::grow(room, load, sizes);
            processes::rows(&growth, &mut table);
            broken.extend(growth.broken());
            all.push(growth);
        }
    }
    let plots = [false, true].into_iter().flat_map(|load| processes::plots(&all, load));
    Printed { text: table.to_string(), plots: plots.collect(), broken }
}

fn of_death(options: &Options) -> Printed {
    let sizes: &[usize] = if options.quick { &[2, 10, 100] } else { &[2, 10, 100, 1000] };
    let mut heads = vec!["seconds without an owner of".to_owned()];
    heads.extend(sizes.iter().map(|size| format!("{} processes", grouped(*size as f64))));
    heads.push("at most".to_owned());
    let (mut table, mut lines, mut broken) = (Table::new(heads), Vec::new(), Vec::new());
    for owned in Owned::ALL.into_iter().filter(|owned| owned.name().contains(&options.only)) {
        eprintln!("{}", owned.name());
        let (mut row, mut points) = (vec![owned.name()], Vec::new());
        let most = owned.at_most().as_secs_f64();
        for size in sizes {
            let time = owned.without_owner(*size).map(|time| time.as_secs_f64());
            row.push(time.map_or("for ever".to_owned(), |time| format!("{time:.1}")));
            points.push((*size as f64, time.unwrap_or_default()));
            if time.is_none_or(|time| time > most) {
                broken.push(format!("{}: {time:?} s of {size} processes, at most {most}", owned.name()));
            }
        }
        row.push(format!("{most:.1}"));
        table.row(row);
        lines.push(Line { name: owned.name(), points });
    }
    let title = "Seconds without an owner after the death of one process".into();
    let plots = vec![("scale-death".into(), Plot { title, x: "processes".into(), lines })];
    Printed { text: table.to_string(), plots, broken }
}

fn of_sizes(options: &Options) -> Printed {
    let mut table = Table::of(&["size of", "cost", "1,000", "10,000", "100,000", "1,000,000", "10,000,000", "law"]);
    let (mut memory, mut times, mut broken) = (Vec::new(), Vec::new(), Vec::new());
    for subject in Subject::ALL.into_iter().filter(|subject| subject.name().contains(&options.only)) {
        eprintln!("{}", subject.name());
        let largest = subject.largest().min(if options.quick { 10_000 } else { usize::MAX });
        let sizes: Vec<usize> = (3..).map(|decade| 10_usize.pow(decade)).take_while(|size| *size <= largest).collect();
        let costs: Vec<_> = sizes.iter().map(|size| subject.measure(*size)).collect();
        broken.extend(sizes::broken(subject, &sizes, &costs));
        for at in 0..costs[0].len() {
            let of = |costs: &Vec<sizes::Cost>| costs[at].value;
            let sizes::Cost { what, law, .. } = costs[0][at];
            let mut row = vec![subject.name().to_owned(), what.to_owned()];
            row.extend((0..5).map(|size| costs.get(size).map_or(String::new(), |costs| grouped(of(costs)))));
            row.push(law.name());
            table.row(row);
            let points = sizes.iter().map(|size| *size as f64).zip(costs.iter().map(of)).collect();
            let line = Line { name: format!("{}: {what}", subject.name()), points };
            if what.starts_with("bytes of memory") {
                memory.push(Line { name: subject.name().to_owned(), ..line });
            } else if law == sizes::Law::Printed {
                times.push(line);
            }
        }
    }
    let plot = |title: &str, lines| Plot { title: title.to_owned(), x: "size".into(), lines };
    let plots = vec![
        ("scale-memory".into(), plot("Bytes of memory for each, by size", memory)),
        ("scale-times".into(), plot("Nanoseconds of an operation, by size (printed, not held)", times)),
    ];
    Printed { text: table.to_string(), plots, broken }
}

fn of_bodies() -> Printed {
    let sizes = [100, 1_000, 10_000, 100_000, 1 << 20];
    let mut heads = vec!["way".to_owned(), "of each pass".to_owned()];
    heads.extend(
        sizes
            .iter()
            .map(|size| if *size == 1 << 20 { "1 MiB".to_owned() } else { format!("{} B", grouped(*size as f64)) }),
    );
    let (mut table, mut lines, mut broken) = (Table::new(heads), Vec::new(), Vec::new());
    for way in Way::ALL {
        let costs: Vec<_> = sizes.iter().map(|size| (*size, way.measure(*size))).collect();
        broken.extend(costs.iter().filter_map(|(size, cost)| way.broken(*size, *cost)));
        let mut add = |what: &str, cell: &dyn Fn(usize, bodies::Cost) -> String| {
            let mut row = vec![way.name().to_owned(), what.to_owned()];
            row.extend(costs.iter().map(|(size, cost)| cell(*size, *cost)));
            table.row(row);
        };
        add("bytes on the wire beside the body", &|size, cost| grouped(cost.wire - size as f64));
        add("bytes on the wire / body", &|size, cost| format!("{:.3}", cost.wire / size as f64));
        add("bytes allocated / body, in all", &|_, cost| format!("{:.1}", cost.copies));
        add("allocations, in all", &|_, cost| cost.allocations.to_string());
        let points = costs.iter().map(|(size, cost)| (*size as f64, cost.wire)).collect();
        lines.push(Line { name: way.name().to_owned(), points });
    }
    let plot = Plot { title: "Bytes on the wire for each pass of a body".into(), x: "bytes of the body".into(), lines };
    Printed { text: table.to_string(), plots: vec![("scale-bodies".into(), plot)], broken }
}

/// Rates are printed, and held by nobody: they are those of this machine.
fn of_callers(quick: bool) -> Printed {
    let time = std::time::Duration::from_millis(if quick { 50 } else { 2_000 });
    let mut heads = vec!["engine".to_owned(), "work".to_owned(), "callers".to_owned()];
    heads.extend(callers::CALLERS.map(|callers| grouped(callers as f64)));
    heads.push("last / best".to_owned());
    let (mut table, mut lines) = (Table::new(heads), Vec::new());
    for engine in callers::Engine::ALL {
        for (work, rates) in engine.measure(time) {
            let best = rates.iter().map(|(_, rate)| rate.of_all).fold(1.0, f64::max);
            let last = rates.last().map_or(0.0, |(_, rate)| rate.of_all);
            let mut row = |what: &str, cell: &dyn Fn(&callers::Rate) -> String, last: String| {
                let mut row = vec![format!("{engine:?}"), format!("{work:?}"), what.to_owned()];
                row.extend(rates.iter().map(|(_, rate)| cell(rate)));
                row.push(last);
                table.row(row);
            };
            row("a second", &|rate| grouped(rate.of_all), format!("{:.2}", last / best));
            row("p99, ms", &|rate| format!("{:.2}", rate.p99.as_secs_f64() * 1e3), String::new());
            let points = rates.iter().map(|(callers, rate)| (*callers as f64, rate.of_all)).collect();
            lines.push(Line { name: format!("{engine:?}, {work:?}"), points });
        }
    }
    let plot = Plot { title: "Operations a second, by callers".into(), x: "callers".into(), lines };
    Printed { text: table.to_string(), plots: vec![("scale-callers".into(), plot)], broken: Vec::new() }
}
