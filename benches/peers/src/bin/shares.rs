//! How evenly each router spreads keys, what a node more and a node less move, and what the papers say of it. See README.md.
//!
//! No clock is read and nothing is drawn: the same figures on every machine.

use std::thread;
use steadfast::sharding::{Maglev, Rendezvous, Ring, ShardId, ShardMap, hash_key, jump};

/// A table's other size in the Maglev paper, a prime, too.
const LARGE: u32 = 655_373;

#[derive(Clone, Copy, PartialEq)]
enum Router {
    Jump,
    Rendezvous,
    /// Weights 1, 2, 3, 4, and again.
    Weighted,
    Ring(u32),
    Maglev(u32),
    Slots(u32),
}

const ROUTERS: [(Router, &str); 9] = [
    (Router::Jump, "jump"),
    (Router::Rendezvous, "rendezvous"),
    (Router::Weighted, "rendezvous, weights 1 to 4"),
    (Router::Ring(100), "ring, 100 points a node"),
    (Router::Ring(1_000), "ring, 1,000 points a node"),
    (Router::Maglev(Maglev::SIZE), "maglev, table of 65,537"),
    (Router::Maglev(LARGE), "maglev, table of 655,373"),
    (Router::Slots(4_096), "4,096 virtual shards"),
    (Router::Slots(65_536), "65,536 virtual shards"),
];

/// A node of each key.
type Route = Box<dyn Fn(u64) -> u32 + Sync>;

impl Router {
    /// Over these nodes; `None` where it cannot have so many.
    fn over(self, nodes: &[u32]) -> Option<Route> {
        let names: Vec<String> = nodes.iter().map(|node| format!("node-{node:04}")).collect();
        let own = nodes.to_vec();
        Some(match self {
            // Its nodes are the first ones, always.
            Router::Jump => Box::new(move |key| jump(hash_key(&key), own.len() as u32)),
            Router::Rendezvous => {
                let router = Rendezvous::new(&names).expect("valid");
                Box::new(move |key| own[router.node(hash_key(&key)) as usize])
            }
            Router::Weighted => {
                let weighted: Vec<(&String, f64)> =
                    names.iter().zip(nodes.iter().map(|node| self.weight(*node))).collect();
                let router = Rendezvous::weighted(&weighted).expect("valid");
                Box::new(move |key| own[router.node(hash_key(&key)) as usize])
            }
            Router::Ring(points) => {
                let ring = Ring::new(&names, points).expect("valid");
                Box::new(move |key| own[ring.node(hash_key(&key)) as usize])
            }
            Router::Maglev(size) => {
                let table = Maglev::of_size(&names, size).expect("valid");
                Box::new(move |key| own[table.node(hash_key(&key)) as usize])
            }
            Router::Slots(slots) => shards(ShardMap::hashed(slots, &ids(nodes)).ok()?),
        })
    }

    /// The same, made of what was there before by the fewest moves, where it knows what was there before.
    fn after(self, before: &[u32], nodes: &[u32]) -> Option<Route> {
        let Router::Slots(slots) = self else { return self.over(nodes) };
        let mut map = ShardMap::hashed(slots, &ids(before)).ok()?;
        for planned in map.plan(&ids(nodes)).ok()? {
            map = map.begin(&planned).expect("a plan fits its map");
            while map.moving().is_some() {
                map = map.advanced().expect("a move is under way");
            }
        }
        Some(shards(map))
    }

    fn weight(self, node: u32) -> f64 {
        if self == Router::Weighted { f64::from(node % 4 + 1) } else { 1.0 }
    }

    /// Whether its paper promises that nothing moves that need not.
    fn moves_the_least(self) -> bool {
        !matches!(self, Router::Maglev(_))
    }
}

fn ids(nodes: &[u32]) -> Vec<ShardId> {
    nodes.iter().copied().map(ShardId).collect()
}

fn shards(map: ShardMap) -> Route {
    Box::new(move |key| map.shard_of(&key).expect("a hashed map has no gaps").0)
}

/// The node of each of the first keys.
fn routes(route: &Route, keys: u64) -> Vec<u32> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let each = keys.div_ceil(threads);
    thread::scope(|scope| {
        let run = |i: u64| move || (i * each..keys.min((i + 1) * each)).map(route).collect::<Vec<u32>>();
        let parts: Vec<_> = (0..threads).map(|i| scope.spawn(run(i))).collect();
        parts.into_iter().flat_map(|part| part.join().expect("routing does not panic")).collect()
    })
}

/// How often each node is named.
fn counts(routes: impl IntoIterator<Item = u32>, nodes: usize) -> Vec<u64> {
    let mut counts = vec![0; nodes];
    routes.into_iter().for_each(|node| counts[node as usize] += 1);
    counts
}

/// Shares in units of what they should be, smallest first, and the deviation that pure chance gives.
struct Shares {
    sorted: Vec<f64>,
    chance: f64,
}

impl Shares {
    fn of(counts: &[u64], weight: impl Fn(u32) -> f64) -> Self {
        let all = counts.iter().sum::<u64>() as f64;
        let weights: Vec<f64> = (0..counts.len() as u32).map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut sorted: Vec<f64> =
            counts.iter().zip(&weights).map(|(count, weight)| *count as f64 / all / (weight / total)).collect();
        sorted.sort_by(f64::total_cmp);
        // Each count is binomial.
        let variance = |weight: &f64| (1.0 - weight / total) / (all * weight / total);
        let chance = (weights.iter().map(variance).sum::<f64>() / counts.len() as f64).sqrt();
        Shares { sorted, chance }
    }

    fn even(counts: &[u64]) -> Self {
        Self::of(counts, |_| 1.0)
    }

    fn largest(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    fn error(&self) -> f64 {
        (self.sorted.iter().map(|share| (share - 1.0).powi(2)).sum::<f64>() / self.sorted.len() as f64).sqrt()
    }

    /// What 99 of 100 nodes have.
    fn interval(&self) -> (f64, f64) {
        let cut = self.sorted.len() / 200;
        (self.sorted[cut], self.sorted[self.sorted.len() - 1 - cut])
    }
}

/// What a change moved, in parts of all keys.
struct Moved {
    all: f64,
    ideal: f64,
    needless: f64,
}

impl Moved {
    fn columns(this: Option<Self>) -> String {
        let percent = |part: f64| format!("{:.3} %", part * 100.0);
        match this {
            Some(moved) => {
                format!("{:>9} {:>9} {:>9}", percent(moved.all), percent(moved.ideal), percent(moved.needless))
            }
            None => format!("{:>9} {:>9} {:>9}", "-", "-", "-"),
        }
    }
}

fn parts(routes: &[u32], other: &[u32], is: impl Fn(u32, u32) -> bool) -> f64 {
    routes.iter().zip(other).filter(|(before, after)| is(**before, **after)).count() as f64 / routes.len() as f64
}

fn row(router: Router, name: &str, n: u32, keys: u64) {
    let nodes: Vec<u32> = (0..n).collect();
    let before = routes(&router.over(&nodes).expect("it has so many nodes"), keys);
    let shares = Shares::of(&counts(before.iter().copied(), n as usize), |node| router.weight(node));

    let with: Vec<u32> = (0..=n).collect();
    let more = router.after(&nodes, &with).map(|route| {
        let after = routes(&route, keys);
        let total: f64 = with.iter().map(|node| router.weight(*node)).sum();
        Moved {
            all: parts(&before, &after, |a, b| a != b),
            ideal: router.weight(n) / total,
            needless: parts(&before, &after, |a, b| a != b && b != n),
        }
    });
    let gone = if router == Router::Jump { n - 1 } else { n / 2 };
    let without: Vec<u32> = nodes.iter().copied().filter(|node| *node != gone).collect();
    let less = router.after(&nodes, &without).map(|route| {
        let after = routes(&route, keys);
        Moved {
            all: parts(&before, &after, |a, b| a != b),
            ideal: parts(&before, &after, |a, _| a == gone),
            needless: parts(&before, &after, |a, b| a != b && a != gone),
        }
    });
    for moved in more.iter().chain(&less) {
        assert!(!router.moves_the_least() || moved.needless == 0.0, "{name} moves what need not move");
    }
    println!(
        "{name:<27} {:>6} {:>7.3} {:>7.3} {:>8.4} {:>7.4}   {}   {}",
        thousands(n.into()),
        shares.largest(),
        shares.sorted[0],
        shares.error(),
        shares.chance,
        Moved::columns(more),
        Moved::columns(less)
    );
}

/// The shares of 1,000 nodes' arcs: hashes are laid evenly, several to each arc.
fn arcs(points: u32) -> Shares {
    let hashes = 4_000 * u64::from(points).max(1_000);
    let names: Vec<String> = (0..1_000).map(|i| format!("node-{i:04}")).collect();
    let ring = Ring::new(&names, points).expect("valid");
    Shares::even(&counts((0..hashes).map(|i| ring.node(i * (u64::MAX / hashes))), 1_000))
}

fn said(who: &str, what: &str, says: &str, here: String) {
    println!("{who:<36} {what:<44} {says:>16}   {here}");
}

fn papers(keys: u64) {
    println!("\nWhat the papers say, of 1,000 nodes where they name a number\n");
    said("paper", "figure", "it says", "here".into());

    let who = "Lamping, Veach 2014, its table";
    for (points, error, interval) in [
        (1, "0.9979", "0.005 to 5.25"),
        (10, "0.3152", "0.37 to 1.98"),
        (100, "0.0997", "0.76 to 1.28"),
        (1_000, "0.0316", "0.92 to 1.09"),
    ] {
        let shares = arcs(points);
        let (low, high) = shares.interval();
        let ring =
            format!("ring of {} point{}: standard error", thousands(points.into()), if points == 1 { "" } else { "s" });
        said(who, &ring, error, format!("{:.4}", shares.error()));
        said("", "  shares of 99 % of the nodes", interval, format!("{low:.2} to {high:.2}"));
    }
    let all = 10 * keys;
    let shares = Shares::even(&counts((0..all).map(|key| jump(hash_key(&key), 1_000)), 1_000));
    let here = format!("{:.4} of {} keys, by chance alone {:.4}", shares.error(), thousands(all), shares.chance);
    said(who, "jump: standard error", "0.0000000076", here);

    // A table filled by rendezvous is filled by chance.
    let who = "Eisenbud and others 2016, 3.4, 5.3";
    let nodes: Vec<u32> = (0..1_000).collect();
    for (size, table, rendezvous, ring, maglev) in
        [(Maglev::SIZE, "65,537", "49.5 %", "29.7 %", "1 %"), (LARGE, "655,373", "12.3 %", "10.3 %", "1 %")]
    {
        let over = |largest: f64| format!("{:.1} %", (largest - 1.0) * 100.0);
        let filled = |router: Router| {
            let route = router.over(&nodes).expect("it has so many nodes");
            over(Shares::even(&counts(routes(&route, u64::from(size)), 1_000)).largest())
        };
        said(who, &format!("table of {table}: over-provision, rendezvous"), rendezvous, filled(Router::Rendezvous));
        said("", "  ring of 1,000 points", ring, filled(Router::Ring(1_000)));
        let names: Vec<String> = nodes.iter().map(|node| format!("node-{node:04}")).collect();
        let table = Maglev::of_size(&names, size).expect("valid");
        let shares = Shares::even(&counts(table.slots().iter().copied(), 1_000));
        let bound = if size >= 100 * 1_000 { format!("{maglev} at most") } else { "almost none".into() };
        said("", "  maglev", &bound, over(shares.largest()));
    }

    let nothing = || "none, above".to_owned();
    said("Thaler, Ravishankar 1998", "rendezvous: moved that need not", "none", nothing());
    said("", "  standard error", "chance alone", "above: error beside chance".into());
    said("Schindelhauer, Schomaker 2005", "weights: shares", "as the weights", "above: in units of the weight".into());
    said("Karger and others 1997", "ring: moved that need not", "none", nothing());

    let ring = Ring::new(&(0..100).map(|i| format!("node-{i:04}")).collect::<Vec<_>>(), 100).expect("valid");
    let mut loads = vec![0_u64; 100];
    for key in 0..keys.min(100_000) {
        let node = ring.bounded(hash_key(&key), &loads, 0.1).expect("a load for each node");
        loads[node as usize] += 1;
    }
    let here = format!("{:.3}", Shares::even(&loads).largest());
    said("Mirrokni and others 2018", "bounded ring, e = 0.1: largest share", "1.1 at most", here);
}

/// 4096 as 4,096.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

fn main() {
    let quick = std::env::args().any(|word| word == "--quick");
    let keys = if quick { 20_000 } else { 1_000_000 };
    println!("{} keys, the numbers from 0.", thousands(keys));
    println!("Shares are in units of what a node should have, moves in parts of all keys.");
    println!("ideal: a new node's share, or what the removed node had. needless: moved beside that.\n");
    println!("{:<27} {:>6} {:^31}   {:^29}   {:^29}", "", "", "shares", "a node more", "a node less");
    println!(
        "{:<27} {:>6} {:>7} {:>7} {:>8} {:>7}   {:>9} {:>9} {:>9}   {:>9} {:>9} {:>9}",
        "router",
        "nodes",
        "largest",
        "least",
        "std err",
        "chance",
        "moved",
        "ideal",
        "needless",
        "moved",
        "ideal",
        "needless"
    );
    for (router, name) in ROUTERS {
        for n in [16, 256, 4_096] {
            row(router, name, n, keys);
        }
    }
    papers(keys);
}
