//! The table of capabilities in the documentation, made from the backends themselves. The normal tests compare the columns
//! of memory and SQLite, those of the engines the columns of the servers.
use steadfast::{
    backend::Backend,
    port::{Capabilities, Capability},
};

/// The page with the table.
const PAGE: &str = include_str!("../../src/_docs/choosing.md");

/// All capabilities, in the order of the rows.
const ALL: [Capability; 15] = [
    Capability::Durable,
    Capability::Shared,
    Capability::Linearizable,
    Capability::AtomicBatch,
    Capability::OrderedVersions,
    Capability::Fencing,
    Capability::OrderedAppend,
    Capability::TimeToLive,
    Capability::Groups,
    Capability::Ordered,
    Capability::Deduplication,
    Capability::Delay,
    Capability::Push,
    Capability::ErrorHistory,
    Capability::Forward,
];

/// First column of the row of the names.
const HEAD: &str = "capability";

/// Capabilities of the four ports of a backend, with their names.
async fn ports(backend: &Backend) -> [(&'static str, Capabilities); 4] {
    let queue = backend.queue("capabilities").await.unwrap();
    [
        ("store", backend.store().capabilities()),
        ("lease", backend.lease().capabilities()),
        ("queue", queue.capabilities()),
        ("notifier", backend.notifier().capabilities()),
    ]
}

fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}

/// Returns the cells of the column of a backend with this name, the name first.
pub(crate) async fn column(name: &str, backend: &Backend) -> Vec<String> {
    let ports = ports(backend).await;
    let named = |port: &(&str, Capabilities), text: String| format!("{} {text}", port.0);
    let mut cells = vec![name.to_owned()];
    for capability in ALL {
        let have: Vec<_> = ports.iter().filter(|(_, can)| can.has(capability)).map(|(port, _)| *port).collect();
        cells.push(have.join(", "));
    }
    let sizes = |of: &dyn Fn(&Capabilities) -> usize, text: &dyn Fn(usize) -> String| {
        let stated = ports.iter().filter(|(_, can)| of(can) < usize::MAX);
        stated.map(|port| named(port, text(of(&port.1)))).collect::<Vec<_>>().join(", ")
    };
    cells.push(sizes(&|can| can.max_value(), &size));
    cells.push(sizes(&|can| can.max_batch(), &|n| n.to_string()));
    cells.push(sizes(&|can| can.max_key(), &size));
    for (port, can) in ports {
        // A capability that is not in the list would be in no row.
        let listed = ALL.iter().filter(|capability| can.has(**capability)).count();
        let stated = format!("{can:?}");
        let stated = stated.split_once('[').unwrap().1.split_once(']').unwrap().0;
        let stated = stated.split(", ").filter(|name| !name.is_empty()).count();
        assert_eq!(listed, stated, "the {port} states other capabilities than those of the list: {can:?}");
    }
    cells
}

/// Prints the table of these columns.
pub(crate) fn table(columns: &[Vec<String>]) -> String {
    let sizes = ["largest value or message", "largest batch or request", "largest key or topic"];
    let names = ALL.iter().map(|capability| capability.as_str()).chain(sizes);
    let mut lines = Vec::new();
    for (row, name) in std::iter::once(HEAD).chain(names).enumerate() {
        let cells = columns.iter().map(|column| format!(" {} |", column[row]));
        lines.push(format!("| {name} |{}", cells.collect::<String>()));
        if row == 0 {
            lines.push(format!("|---|{}", "---|".repeat(columns.len())));
        }
    }
    lines.join("\n")
}

/// Returns the table of the page, with the columns of these names alone.
fn documented(names: &[&str]) -> String {
    let begin = format!("| {HEAD} |");
    let lines: Vec<_> = PAGE.lines().skip_while(|line| !line.starts_with(&begin)).collect();
    let lines = lines.into_iter().take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split('|').map(str::trim).collect()).collect();
    let places: Vec<usize> = std::iter::once(HEAD)
        .chain(names.iter().copied())
        .map(|name| {
            let place = rows.first().and_then(|head| head.iter().position(|cell| *cell == name));
            place.unwrap_or_else(|| panic!("the table of choosing.md has no column {name:?}"))
        })
        .collect();
    let line = |row: &Vec<&str>| match row[1] {
        "---" => format!("|{}", "---|".repeat(places.len())),
        _ => format!("|{}", places.iter().map(|place| format!(" {} |", row[*place])).collect::<String>()),
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Compares the columns of these backends with those of the page.
pub(crate) fn is_documented(columns: &[Vec<String>]) {
    let names: Vec<&str> = columns.iter().map(|column| column[0].as_str()).collect();
    let (documented, stated) = (documented(&names), table(columns));
    assert_eq!(documented, stated, "the table of choosing.md differs from the backends, which state:\n\n{stated}\n");
}
