//! The table of capabilities in the documentation, generated from the code.
use std::{fmt::Write as _, sync::Arc};

use steadfast::{
    backend::{
        self,
        sqlite::{Sqlite, SqliteConfig},
    },
    lease::Lease,
    notify::Notifier,
    port::{Capabilities, Capability},
    queue::Queue,
    store::Store,
};

use crate::server;

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

/// Lines of the page between which the table is.
const BEGIN: &str = "<!-- generated: capabilities -->";
const END: &str = "<!-- end of what is generated -->";

/// The capabilities of the four ports of an engine.
struct Engine {
    name: &'static str,
    ports: [Capabilities; 4],
}

impl Engine {
    fn new(name: &'static str, ports: (&dyn Store, &dyn Queue, &dyn Lease, &dyn Notifier)) -> Self {
        let (store, queue, lease, notifier) = ports;
        let ports = [store.capabilities(), queue.capabilities(), lease.capabilities(), notifier.capabilities()];
        Self { name, ports }
    }

    async fn open(name: &'static str, url: &str) -> Self {
        let backend = backend::open(url).await.unwrap();
        let queue = backend.queue("capabilities").await.unwrap();
        Self::new(name, (&*backend.store(), &*queue, &*backend.lease(), &*backend.notifier()))
    }
}

fn size(size: usize) -> String {
    match size {
        usize::MAX => "any".to_owned(),
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 16 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => size.to_string(),
    }
}

fn table(engines: &[Engine]) -> String {
    let mut table = String::from("\n| port | capability |");
    engines.iter().for_each(|engine| write!(table, " {} |", engine.name).unwrap());
    table += "\n|---|---|";
    engines.iter().for_each(|_| table += "---|");
    for (port, name) in ["store", "queue", "lease", "notifier"].into_iter().enumerate() {
        let mut row = |what: &str, cell: &dyn Fn(&Capabilities) -> String| {
            write!(table, "\n| {name} | {what} |").unwrap();
            for engine in engines {
                let cell = cell(&engine.ports[port]);
                table += if cell.is_empty() { " |" } else { " " };
                if !cell.is_empty() {
                    write!(table, "{cell} |").unwrap();
                }
            }
        };
        for capability in ALL {
            if engines.iter().any(|engine| engine.ports[port].has(capability)) {
                row(capability.as_str(), &|can| if can.has(capability) { "yes".to_owned() } else { String::new() });
            }
        }
        if port != 2 {
            row("largest value, in bytes", &|can| size(can.max_value()));
        }
        if port < 2 {
            row("largest batch", &|can| size(can.max_batch()));
        }
        row("largest key, in bytes", &|can| size(can.max_key()));
    }
    table + "\n\n"
}

#[test]
fn the_table_of_capabilities_in_the_documentation_is_that_of_the_code() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let engines = runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = Sqlite::open(SqliteConfig::at(folder.path().join("state.db"))).unwrap();
        let lease = steadfast::lease::StoreLease::new(Arc::new(sqlite.store())).unwrap();
        let queue = sqlite.queue("capabilities").unwrap();
        [
            Engine::open("memory", "memory:").await,
            Engine::new("SQLite", (&sqlite.store(), &queue, &lease, &sqlite.notifier())),
            Engine::open("PostgreSQL", &server::Postgres::shared().url()).await,
            Engine::open("Redis", &server::Redis::shared_durable().url()).await,
            Engine::open("NATS", &server::NatsCluster::shared().url()).await,
        ]
    });
    for can in engines.iter().flat_map(|engine| engine.ports) {
        // `Debug` has them all, and so notices one that is missing here.
        let shown = format!("{can:?}");
        let listed = ALL.into_iter().filter(|capability| can.has(*capability)).count();
        let all = shown.split_once('[').unwrap().1.split_once(']').unwrap().0.matches('"').count() / 2;
        assert_eq!(listed, all, "add the new capability to the table: {shown}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/_docs/choosing.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table's begin");
    let (written, after) = rest.split_once(END).expect("the page has the table's end");
    let generated = format!("\n{}", table(&engines).trim_start_matches('\n'));
    if std::env::var_os("STEADFAST_WRITE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}\n{generated}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written.trim(),
        generated.trim(),
        "the table differs from the code: run this test with STEADFAST_WRITE=1, and look at the difference"
    );
}
