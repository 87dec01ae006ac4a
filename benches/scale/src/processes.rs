//! The first law: what processes that know of each other cost, by their number.
use std::time::Duration;

use crate::{
    counted::Tally,
    plot::{Line, Plot},
    rooms::Room,
    table::{Table, grouped},
    world::{S, World},
};

/// By how much more than the number of processes a count may grow.
pub const SLACK: f64 = 1.2;

/// The counts of one room by the number of its processes.
pub struct Growth {
    pub room: Room,
    pub load: bool,
    /// The number of processes, and the counts of an hour.
    pub counts: Vec<(usize, PerHour)>,
}

#[derive(Debug, Clone, Copy)]
pub struct PerHour {
    pub requests: f64,
    pub bytes: f64,
    pub notices: f64,
}

impl PerHour {
    fn of(tally: Tally, time: Duration) -> Self {
        let hours = time.as_secs_f64() / 3600.0;
        let of = |count: u64| count as f64 / hours;
        Self { requests: of(tally.requests), bytes: of(tally.bytes), notices: of(tally.notices) }
    }
}

/// Returns the time that is measured: shorter for many processes, whose counts vary less.
fn measured(processes: usize) -> Duration {
    if processes > 100 { S(120) } else { S(600) }
}

pub fn measure(room: Room, load: bool, processes: usize) -> PerHour {
    let world = World::new();
    for number in 0..processes {
        world.start(room.process(world.process(number, processes), load));
    }
    world.pass(room.settles_in());
    let time = measured(processes);
    PerHour::of(world.pass(time), time)
}

/// Measures a room. Each count is told as it comes, since those of many processes take minutes.
pub fn grow(room: Room, load: bool, sizes: &[usize]) -> Growth {
    let mut growth = Growth { room, load, counts: Vec::new() };
    for processes in sizes {
        let counts = measure(room, load, *processes);
        let PerHour { requests, bytes, notices } = counts;
        eprintln!("{}, {processes}: {requests:.0} requests, {bytes:.0} bytes, {notices:.0} notices", growth.title());
        growth.counts.push((*processes, counts));
    }
    growth
}

impl Growth {
    /// Returns the rules that the counts break. One process has no other one to talk to, so growth begins at the second size.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let several: Vec<_> = self.counts.iter().filter(|(processes, _)| *processes > 1).collect();
        let name = self.title();
        for pair in several.windows(2) {
            let ((few, fewer), (many, more)) = (pair[0], pair[1]);
            let times = *many as f64 / *few as f64 * SLACK;
            let pairs = (*many as f64).powi(2);
            if more.requests > fewer.requests.max(1.0) * times + self.room.requests_of_a_pair(self.load) * pairs {
                broken.push(format!(
                    "{name}: {few} processes make {:.0} requests an hour, {many} make {:.0}",
                    fewer.requests, more.requests
                ));
            }
            if more.bytes > fewer.bytes.max(1.0) * times + self.room.bytes_of_a_pair(self.load) * pairs {
                broken.push(format!(
                    "{name}: {few} processes move {:.0} bytes an hour, {many} move {:.0}",
                    fewer.bytes, more.bytes
                ));
            }
        }
        broken
    }

    pub fn title(&self) -> String {
        format!("{}, {}", self.room.name(), if self.load { self.room.load() } else { "at rest" })
    }
}

/// Adds the rows of a room to the table.
pub fn table(sizes: &[usize]) -> Table {
    let mut heads = vec!["room".to_owned(), "each process".to_owned(), "count".to_owned()];
    heads.extend(sizes.iter().map(|size| grouped(*size as f64)));
    heads.push("law".to_owned());
    Table::new(heads)
}

pub fn rows(growth: &Growth, table: &mut Table) {
    let work = if growth.load { growth.room.load() } else { "at rest" };
    let cells = |of: &dyn Fn(&PerHour) -> f64| -> Vec<String> {
        growth.counts.iter().map(|(_, counts)| grouped(of(counts))).collect()
    };
    let law = |of_a_pair: f64| match of_a_pair {
        0.0 => "linear".to_owned(),
        most => format!("linear, and {} for each pair", grouped(most)),
    };
    let has_notices = growth.counts.iter().any(|(_, counts)| counts.notices > 0.0);
    let counts = [
        Some(("requests an hour", cells(&|counts| counts.requests), law(growth.room.requests_of_a_pair(growth.load)))),
        has_notices.then(|| ("notices an hour", cells(&|counts| counts.notices), String::new())),
        Some(("bytes an hour", cells(&|counts| counts.bytes), law(growth.room.bytes_of_a_pair(growth.load)))),
    ];
    for (count, cells, law) in counts.into_iter().flatten() {
        let mut row = vec![growth.room.name(), work.to_owned(), count.to_owned()];
        row.extend(cells);
        row.push(law);
        table.row(row);
    }
}

/// Returns the plots of requests and of bytes an hour, at rest or under load.
pub fn plots(all: &[Growth], load: bool) -> Vec<(String, Plot)> {
    let work = if load { "load" } else { "rest" };
    let of = |what: &str, of: &dyn Fn(&PerHour) -> f64| {
        let lines = all.iter().filter(|growth| growth.load == load).map(|growth| Line {
            name: growth.room.name(),
            points: growth.counts.iter().map(|(processes, counts)| (*processes as f64, of(counts))).collect(),
        });
        let title = format!("{what} an hour by processes, {}", if load { "under load" } else { "at rest" });
        (format!("scale-{what}-{work}"), Plot { title, x: "processes".into(), lines: lines.collect() })
    };
    vec![of("requests", &|counts| counts.requests), of("bytes", &|counts| counts.bytes)]
}
