//! steadfast beside its rivals: the same work, alternating in one run. See README.md.

mod alloc;
mod budget;
mod harness;
mod instructions;
mod readme;
mod report;
mod works;

use harness::Effort;
use instructions::Counter;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use works::{Work, all};

const USAGE: &str = "\
usage: steadfast-peers [--json] [--quick] [--rounds N] [--ms N] [--instructions] [--list] [--page FILE] [--readme FILE]
                       [--budget FILE | --write-budget FILE] [WORK ...]

  WORK            measure only these works (all by default); shard_ring is all that begin with shard_ring_
  --list          print the works and leave
  --json          one JSON object a line instead of tables
  --quick         a smoke run: short rounds, and few of them
  --rounds N      rounds for each work (25 by default)
  --ms N          milliseconds a round (20 by default); on a busy machine more of the short ones are left alone
  --instructions  count instructions, under valgrind if the processor's counter is out of reach (slow)
  --page FILE     put the table of this run between the two markers of FILE: each row that loses, and some that do not
  --readme FILE   the same with ten rows
  --budget FILE   count our instructions under callgrind, and fail if a work takes 3 % more than FILE allows; no times
  --write-budget FILE   put the present numbers of the works into FILE";

struct Arguments {
    json: bool,
    list: bool,
    instructions: bool,
    effort: Effort,
    page: Option<PathBuf>,
    readme: Option<PathBuf>,
    budget: Option<PathBuf>,
    new_budget: Option<PathBuf>,
    /// The child's half of a count under callgrind.
    only_subject: Option<usize>,
    works: Vec<&'static Work>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Arguments {
            json: false,
            list: false,
            instructions: false,
            effort: Effort { rounds: 25, round: Duration::from_millis(20) },
            page: None,
            readme: None,
            budget: None,
            new_budget: None,
            only_subject: None,
            works: Vec::new(),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => arguments.json = true,
                "--list" => arguments.list = true,
                "--instructions" => arguments.instructions = true,
                "--quick" => arguments.effort = Effort { rounds: 5, round: Duration::from_millis(1) },
                "--page" => {
                    arguments.page = Some(words.next().ok_or("--page wants a file")?.into());
                }
                "--readme" => {
                    arguments.readme = Some(words.next().ok_or("--readme wants a file")?.into());
                }
                "--budget" => arguments.budget = Some(words.next().ok_or("--budget wants a file")?.into()),
                "--write-budget" => {
                    arguments.new_budget = Some(words.next().ok_or("--write-budget wants a file")?.into());
                }
                "--rounds" => {
                    let rounds = number(words.next()).filter(|&rounds| rounds > 0);
                    arguments.effort.rounds = rounds.ok_or("--rounds wants a number from 1")?;
                }
                "--ms" => {
                    let ms = number(words.next()).filter(|&ms| ms > 0);
                    arguments.effort.round = Duration::from_millis(ms.ok_or("--ms wants a number from 1")? as u64);
                }
                "--only-subject" => {
                    arguments.only_subject = Some(number(words.next()).ok_or("--only-subject wants a number")?);
                }
                option if option.starts_with('-') => return Err(format!("unknown option {option}\n{USAGE}")),
                name => {
                    let family = format!("{name}_");
                    let before = arguments.works.len();
                    match all().find(|work| work.name == name) {
                        Some(work) => arguments.works.push(work),
                        None => arguments.works.extend(all().filter(|work| work.name.starts_with(&family))),
                    }
                    if arguments.works.len() == before {
                        return Err(format!("unknown work {name}; --list prints them all"));
                    }
                }
            }
        }
        if arguments.works.is_empty() {
            // Those that are too heavy for callgrind have no budget.
            let counted = arguments.budget.is_some() || arguments.new_budget.is_some();
            arguments.works = all().filter(|work| !counted || work.light).collect();
        }
        Ok(arguments)
    }
}

fn number(word: Option<String>) -> Option<usize> {
    word?.parse().ok()
}

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|error| error.to_string());
    if arguments.list {
        return arguments.works.iter().try_for_each(|work| say(format!("{:<24} {}", work.name, work.about)));
    }
    if let Some(subject) = arguments.only_subject {
        arguments.works.iter().for_each(|work| instructions::run_one(work, subject));
        return Ok(());
    }
    if let Some(path) = arguments.budget {
        return budget::check(&path, &arguments.works, say);
    }
    if let Some(path) = arguments.new_budget {
        return budget::write(&path, &arguments.works);
    }
    let counter = Counter::choose(arguments.instructions)?;
    let mut all = Vec::new();
    for work in arguments.works {
        let tables =
            harness::measure(work, &[1, 2], arguments.effort, |at, instance| counter.count(work, at, instance));
        for table in tables {
            say(if arguments.json { report::json(&table) } else { report::table(&table) })?;
            all.push(table);
        }
    }
    if !arguments.json {
        say(readme::ranking(&all))?;
    }
    arguments.page.map_or(Ok(()), |path| readme::rewrite(&path, &readme::markdown(&all)?))?;
    arguments.readme.map_or(Ok(()), |path| readme::rewrite(&path, &readme::few(&all)?))
}
