//! Hash routers, from a hash to one of many nodes: jump, rendezvous, ring, maglev. A look-up never
//! allocates.
use super::key::hash_bytes;
use crate::{
    config::{ConfigError, require},
    entropy::mix,
};

/// The index of a node in the list from which the router was created.
pub type Node = u32;

/// Returns the bucket of a key by jump hash (Lamping, Veach 2014). It needs no memory and its
/// balance is exact; nodes can be added and removed only at the end.
///
/// # Panics
/// Never: zero buckets count as one.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the paper's arithmetic"
)]
#[inline]
pub fn jump(mut key: u64, buckets: u32) -> Node {
    let buckets = u64::from(buckets.max(1));
    let mut next = 0_i64;
    loop {
        // Four jumps at a time, then a search for the last one below the bound. The branch is
        // unpredictable, and a wrong guess costs as much as a jump. A jump goes up, or overflows to
        // a negative number, which as an unsigned one is above all buckets, too.
        let mut bucket = next;
        for _ in 0..4 {
            key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
            let after = next.wrapping_add(1) as f64;
            next = (after * ((1_u64 << 31) as f64 / ((key >> 33) as i64 + 1) as f64)) as i64;
            bucket = if (next as u64) < buckets { next } else { bucket };
        }
        if next as u64 >= buckets {
            return bucket as Node;
        }
    }
}

/// A mapping from a hash to one of several nodes.
pub trait HashRouter {
    /// Returns the number of nodes.
    fn nodes(&self) -> usize;

    /// Returns the node of this hash, below [`nodes`](Self::nodes).
    fn node(&self, hash: u64) -> Node;
}

/// A router by [`jump`] with this number of buckets.
#[derive(Debug, Clone, Copy)]
pub struct Jump(pub u32);

impl HashRouter for Jump {
    fn nodes(&self) -> usize {
        self.0 as usize
    }

    fn node(&self, hash: u64) -> Node {
        jump(hash, self.0)
    }
}

fn named(names: &[impl AsRef<str>]) -> Result<Vec<u64>, ConfigError> {
    require(!names.is_empty(), "nodes", "must be at least one")?;
    require(Node::try_from(names.len()).is_ok(), "nodes", "must be fewer than 2^32")?;
    let hashes: Vec<u64> = names.iter().map(|name| hash_bytes(name.as_ref().as_bytes())).collect();
    let mut sorted = hashes.clone();
    sorted.sort_unstable();
    require(sorted.windows(2).all(|two| two[0] != two[1]), "nodes", "must have names that differ")?;
    Ok(hashes)
}

/// Rendezvous hashing, or highest random weight (Thaler, Ravishankar 1998): only the keys of a
/// removed node move. The cost is linear in the nodes. For many nodes use it to assign the virtual
/// shards of a [`ShardMap`](super::ShardMap), which keeps the moves small at the cost of one table
/// look-up.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    nodes: Vec<u64>,
    weights: Option<Vec<f64>>,
}

impl Rendezvous {
    /// Creates a router over `names`, all of equal weight.
    ///
    /// # Errors
    /// There are no names, or two are equal.
    pub fn new(names: &[impl AsRef<str>]) -> Result<Self, ConfigError> {
        Ok(Self { nodes: named(names)?, weights: None })
    }

    /// Creates a router over these names and weights (Schindelhauer, Schomaker 2005).
    ///
    /// # Errors
    /// Same as [`new`](Self::new), and if a weight is not finite and above zero.
    pub fn weighted(nodes: &[(impl AsRef<str>, f64)]) -> Result<Self, ConfigError> {
        let names: Vec<&str> = nodes.iter().map(|node| node.0.as_ref()).collect();
        let weights: Vec<f64> = nodes.iter().map(|node| node.1).collect();
        require(weights.iter().all(|w| w.is_finite() && *w > 0.0), "weight", "must be finite and above 0")?;
        Ok(Self { nodes: named(&names)?, weights: Some(weights) })
    }

    /// Returns the node of this hash.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "53 bits are kept; nodes are counted in 32"
    )]
    pub fn node(&self, hash: u64) -> Node {
        let mut best = 0;
        if let Some(weights) = &self.weights {
            let mut highest = f64::NEG_INFINITY;
            for (i, (node, weight)) in self.nodes.iter().zip(weights).enumerate() {
                let unit = ((mix(hash ^ node) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
                // -ln(u) is at least 1 - u, which excludes most nodes without a logarithm. The
                // factor allows for rounding.
                if *weight < highest * (1.0 - unit) * (1.0 - 1e-9) {
                    continue;
                }
                let score = -weight / unit.ln();
                if score > highest {
                    (highest, best) = (score, i);
                }
            }
        } else {
            let mut highest = 0;
            for (i, node) in self.nodes.iter().enumerate() {
                let score = mix(hash ^ node);
                if score > highest {
                    (highest, best) = (score, i);
                }
            }
        }
        best as Node
    }
}

/// A hash ring with virtual nodes (Karger and others 1997): a hash belongs to the next point.
#[derive(Debug, Clone)]
pub struct Ring {
    /// The high half of each point and its node, which look-ups read.
    near: Vec<(u32, Node)>,
    /// All bits of each point, for hashes whose high half equals a point's.
    points: Vec<u64>,
    /// For each value of the first bits of a hash, the first point at or above it.
    index: Vec<u32>,
    shift: u32,
    nodes: usize,
}

impl Ring {
    /// Creates a ring over `names` with `points` points for each.
    ///
    /// # Errors
    /// There are no names or no points, there are too many, or two names are equal.
    #[allow(clippy::cast_possible_truncation, reason = "both are below 2^32")]
    pub fn new(names: &[impl AsRef<str>], points: u32) -> Result<Self, ConfigError> {
        require(points > 0, "points", "must be at least 1")?;
        let hashes = named(names)?;
        let total = hashes.len().checked_mul(points as usize).filter(|all| *all < 1 << 30);
        require(total.is_some(), "points", "must be fewer than 2^30 in all")?;
        let turns: Vec<u64> = (1..=u64::from(points)).map(mix).collect();
        let of = |node: u64| turns.iter().map(move |turn| mix(node ^ turn));
        // About two points for each place of the index. Points are sorted once each is in its place
        // and each place is sorted.
        let bits = (total.unwrap_or(1).next_power_of_two().trailing_zeros()).clamp(2, 29) - 1;
        let shift = 64 - bits;
        let place = |point: u64| (point >> shift) as usize;
        let mut index = vec![0_u32; (1 << bits) + 1];
        hashes.iter().flat_map(|node| of(*node)).for_each(|point| index[place(point) + 1] += 1);
        (1..index.len()).for_each(|i| index[i] += index[i - 1]);
        let mut free = index.clone();
        let mut ring = vec![(0_u64, 0 as Node); total.unwrap_or(0)];
        for (i, node) in hashes.iter().enumerate() {
            for point in of(*node) {
                let at = &mut free[place(point)];
                ring[*at as usize] = (point, i as Node);
                *at += 1;
            }
        }
        for run in index.windows(2) {
            ring[run[0] as usize..run[1] as usize].sort_unstable_by_key(|(p, node)| (*p, hashes[*node as usize]));
        }
        let near = ring.iter().map(|(point, node)| ((point >> 32) as u32, *node)).collect();
        Ok(Self { near, points: ring.into_iter().map(|p| p.0).collect(), index, shift, nodes: hashes.len() })
    }

    #[allow(clippy::cast_possible_truncation, reason = "as many bits as the index has; half a hash")]
    #[inline]
    fn place(&self, hash: u64) -> usize {
        let half = (hash >> 32) as u32;
        let mut at = self.index[(hash >> self.shift) as usize] as usize;
        while let Some((point, _)) = self.near.get(at) {
            if *point > half || *point == half && self.points[at] >= hash {
                return at;
            }
            at += 1;
        }
        0
    }

    /// Returns the node of this hash.
    #[inline]
    pub fn node(&self, hash: u64) -> Node {
        self.near[self.place(hash)].1
    }

    /// Returns the first node from this hash on that holds fewer than `ceil((1 + e) * (m + 1) / n)`
    /// of the `m` keys held so far (Mirrokni, Thorup, Zadimoghaddam 2018). `loads` has a number for
    /// each node. `None` if a number is missing, or `e` is below 0.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn bounded(&self, hash: u64, loads: &[u64], e: f64) -> Option<Node> {
        if loads.len() != self.nodes || e.is_nan() || e < 0.0 {
            return None;
        }
        let held: u64 = loads.iter().sum();
        let bound = ((1.0 + e) * (held + 1) as f64 / self.nodes as f64).ceil();
        let from = self.place(hash);
        let around = self.near[from..].iter().chain(&self.near[..from]);
        around.map(|(_, node)| *node).find(|node| ((loads[*node as usize] + 1) as f64) <= bound)
    }
}

/// A Maglev table (Eisenbud and others 2016): one look-up, and a change moves little more than the
/// minimum.
#[derive(Debug, Clone)]
pub struct Maglev {
    table: Vec<Node>,
    nodes: usize,
}

impl Maglev {
    /// The default size of the table, a prime.
    pub const SIZE: u32 = 65_537;

    /// Creates a router over `names` with a table of [`SIZE`](Self::SIZE).
    ///
    /// # Errors
    /// Same as [`of_size`](Self::of_size).
    pub fn new(names: &[impl AsRef<str>]) -> Result<Self, ConfigError> {
        Self::of_size(names, Self::SIZE)
    }

    /// Creates a router over `names` with a table of this size.
    ///
    /// # Errors
    /// There are no names, or two are equal; the size is not a prime, or below the number of names.
    #[allow(clippy::cast_possible_truncation, reason = "below the size, which has 32 bits")]
    pub fn of_size(names: &[impl AsRef<str>], size: u32) -> Result<Self, ConfigError> {
        let prime = size >= 2
            && (2..).take_while(|d| u64::from(*d) * u64::from(*d) <= u64::from(size)).all(|d| !size.is_multiple_of(d));
        require(prime, "size", "must be a prime")?;
        let hashes = named(names)?;
        require(hashes.len() <= size as usize, "size", "must be at least the number of nodes")?;
        let m = u64::from(size);
        let mut turns: Vec<(u64, u64)> = hashes.iter().map(|h| (h % m, mix(*h ^ 0x9e37_79b9) % (m - 1) + 1)).collect();
        let mut table = vec![Node::MAX; size as usize];
        let mut filled = 0;
        loop {
            for (i, (next, skip)) in turns.iter_mut().enumerate() {
                while table[*next as usize] != Node::MAX {
                    *next = (*next + *skip) % m;
                }
                table[*next as usize] = i as Node;
                filled += 1;
                if filled == size {
                    return Ok(Self { table, nodes: hashes.len() });
                }
            }
        }
    }

    /// Returns the node of this hash.
    #[allow(clippy::cast_possible_truncation, reason = "the high half of a product is below the length")]
    #[inline]
    pub fn node(&self, hash: u64) -> Node {
        self.table[((u128::from(hash) * self.table.len() as u128) >> 64) as usize]
    }

    /// Returns the whole table.
    pub fn slots(&self) -> &[Node] {
        &self.table
    }
}

macro_rules! hash_routers {
    ($($router:ty: $nodes:expr;)*) => {$(
        impl HashRouter for $router {
            fn nodes(&self) -> usize {
                $nodes(self)
            }

            fn node(&self, hash: u64) -> Node {
                <$router>::node(self, hash)
            }
        }
    )*};
}
hash_routers! {
    Rendezvous: |all: &Rendezvous| all.nodes.len();
    Ring: |all: &Ring| all.nodes;
    Maglev: |all: &Maglev| all.nodes;
}
