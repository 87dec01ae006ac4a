//! Publishers and pruners of a site under seeded schedules: requests that come late, twice, or not at all, puts that store
//! nothing, processes that die, stand still, or do not count the time in which they were suspended. Each page has all of its
//! files, from its first moment until its release may be pruned, and no publisher moves the head after a later one has begun.
//! With a guard taken out this is violated.
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    lease::{Acquired, Held, InMemoryLease, Lease, LeaseFuture, Renewed},
    port::{Capabilities, FencingToken},
    static_content::{Release, SiteConfig, SiteError, SitePublisher, StaticSite},
    store::{InMemoryStore, Key, PutOptions, Store, StoreFuture, Version},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock, TimeSource, Timestamp},
};

use super::{bucket::Bucket, services};

const MS: fn(u64) -> Duration = Duration::from_millis;
const PUBLISHERS: usize = 3;
const PRUNERS: usize = 2;
const SERVICES: usize = 2;
const BASE: &str = "https://cdn.example/";
/// Time for which a page asks for its files.
const KEEP_FOR: Duration = Duration::from_millis(800);
const END: Duration = Duration::from_secs(14);

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Each publisher gets the lease that asks for it.
    Lease,
    /// HEAD is not asked: an object is believed to be there.
    Head,
    /// The head is written without the token of the lease.
    Fence,
}

/// The store of the site, which compares the tokens under which its head is written.
#[derive(Debug)]
struct Watched {
    store: InMemoryStore,
    without: Without,
    highest: Mutex<Option<FencingToken>>,
    violations: Mutex<Vec<String>>,
}

impl Store for Watched {
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let token = options.fence;
            let mut options = options;
            options.fence = token.filter(|_| self.without != Without::Fence);
            let written = self.store.put(key, value, options).await?;
            if key.row == "head" {
                let mut highest = self.highest.lock().unwrap();
                if token < *highest {
                    let told = format!("an old publisher wins: {token:?} wrote the head after {highest:?}");
                    self.violations.lock().unwrap().push(told);
                }
                *highest = token.max(*highest);
            }
            Ok(written)
        })
    }
}

/// A lease that everybody is granted.
#[derive(Debug, Default)]
struct Granted(AtomicU64);

impl Lease for Granted {
    fn capabilities(&self) -> Capabilities {
        InMemoryLease::new().capabilities()
    }
    fn acquire<'a>(&'a self, _: &'a str, _: &'a str, _: Duration) -> LeaseFuture<'a, Acquired> {
        Box::pin(async { Ok(Acquired::Granted(FencingToken::new(self.0.fetch_add(1, SeqCst) + 1))) })
    }
    fn renew<'a>(&'a self, _: &'a str, _: &'a str, _: FencingToken, _: Duration) -> LeaseFuture<'a, Renewed> {
        Box::pin(async { Ok(Renewed::new(false)) })
    }
    fn release<'a>(&'a self, _: &'a str, _: &'a str, _: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn read<'a>(&'a self, _: &'a str) -> LeaseFuture<'a, Option<Held>> {
        Box::pin(async { Ok(None) })
    }
    fn request_release<'a>(&'a self, _: &'a str, _: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// The clock of a machine that does not count the time in which it is suspended. Its wall clock is set after that.
#[derive(Clone)]
struct Machine {
    clock: Clock,
    suspended: Arc<Mutex<Duration>>,
}

impl TimeSource for Machine {
    fn now(&self) -> Instant {
        self.clock.now().saturating_sub(*self.suspended.lock().unwrap())
    }
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let machine = self.clone();
        Box::pin(async move {
            while machine.now() < at {
                let until = at + *machine.suspended.lock().unwrap();
                machine.clock.sleep_until(until).await;
            }
        })
    }
    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }
}

/// Writes that were dropped on their way, and when they arrive: within the time limit of a request.
type OnTheirWay = Arc<Mutex<Vec<(Instant, String)>>>;

/// The way to the bucket: a write whose caller has dropped it may arrive nevertheless.
#[derive(Debug)]
struct Way {
    link: Arc<dyn Store>,
    late: OnTheirWay,
    clock: Clock,
    entropy: Entropy,
}

/// A write on its way.
struct Sent<'a>(&'a Way, Instant, Option<&'a str>);

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Self(way, sent, Some(row)) = self else { return };
        let at = way.clock.now() + MS(way.entropy.up_to(60));
        way.late.lock().unwrap().push((at.min(*sent + MS(100)), (*row).to_owned()));
    }
}

impl Store for Way {
    forward_store! { link: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let mut sent = Sent(self, self.clock.now(), Some(key.row));
            let done = self.link.put(key, value, options).await;
            sent.2 = None;
            done
        })
    }
}

type Life = Pin<Box<dyn Future<Output = ()>>>;

/// A process, and its connections.
struct Node {
    life: Life,
    to_store: FaultClient,
    to_bucket: FaultClient,
    machine: Machine,
    /// Until when it stands still, and since when it is suspended.
    paused: Option<Instant>,
    suspended: Option<(Instant, Instant)>,
}

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    /// Without requests that come later than their time limit: of such deletes the page warns.
    lines: FaultNetwork,
    late: OnTheirWay,
    store: Arc<Watched>,
    leases: Arc<dyn Lease>,
    bucket: Bucket,
    without: Without,
    /// The last page of each release: when it was rendered, and its files.
    pages: BTreeMap<u64, (Instant, Vec<String>)>,
    lived: Lived,
}

/// The result of a schedule.
#[derive(Default)]
struct Lived {
    violations: Vec<String>,
    pages: u64,
    releases: u64,
    pruned: usize,
}

fn config() -> SiteConfig {
    let config = SiteConfig::at(BASE).keep_releases(1).keep_for(KEEP_FOR).poll_interval(MS(1_000)).parallelism(2);
    config.call_timeout(MS(100)).lease_term(MS(500))
}

/// A release of some files, each in one of a few states, so that names come again. All files have one size.
fn release(entropy: &Entropy) -> Release {
    let files = (0..4).filter(|_| entropy.up_to(3) > 0);
    let files = files.fold(Release::new(), |release, file| {
        let text = format!("{file} {}", entropy.up_to(4));
        release.file(format!("{file}.js"), text)
    });
    files.file("page.html", format!("p {}", entropy.up_to(4))).entry_points(["page.html"])
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let network = services::network(&entropy, [0, 5, 25], &clock);
        let share = |most: f64| most * entropy.unit();
        let faults = FaultConfig::default().errors(share(0.05)).lost_replies(share(0.1)).doubled(share(0.1));
        let faults = faults.latency(MS(0), MS([0, 5, 25][entropy.up_to(2) as usize]));
        let lines = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let store = InMemoryStore::builder().clock(&clock).build();
        let store = Arc::new(Watched { store, without, highest: Mutex::default(), violations: Mutex::default() });
        let leases: Arc<dyn Lease> = match without {
            Without::Lease => Arc::new(Granted::default()),
            _ => Arc::new(InMemoryLease::builder().clock(&clock).build()),
        };
        let mut bucket = Bucket::new();
        bucket.trusts = (without == Without::Head).then_some(3);
        let (pages, lived) = (BTreeMap::new(), Lived::default());
        let late = OnTheirWay::default();
        Self { clock, time, entropy, network, lines, late, store, leases, bucket, without, pages, lived }
    }

    fn publisher(&self, (to_store, to_bucket): (&FaultClient, &FaultClient), clock: &Clock) -> SitePublisher {
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        let (late, way) = (self.late.clone(), self.clock.clone());
        let bucket =
            self.bucket.behind(|store| Arc::new(Way { link: to_bucket.store(store), late, clock: way, entropy }));
        let leases = to_store.lease(self.leases.clone());
        SitePublisher::builder(bucket, to_store.store(self.store.clone()), leases, "shop", config())
            .clock(clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap()
    }

    /// A process that begins anew, until it dies.
    fn life(&self, nth: usize, clients: (&FaultClient, &FaultClient), machine: &Machine) -> Life {
        let clock = Clock::from_source(machine.clone());
        let publisher = self.publisher(clients, &clock);
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        Box::pin(async move {
            loop {
                clock.sleep(MS(entropy.up_to(if nth < PUBLISHERS { 1_500 } else { 1_000 }))).await;
                if nth >= PUBLISHERS {
                    let _ = publisher.prune().await;
                } else if entropy.up_to(3) > 0 {
                    let _ = publisher.publish(release(&entropy)).await;
                } else if let Ok(releases) = publisher.releases().await
                    && let Some(one) = releases.get(entropy.up_to(2) as usize)
                {
                    let _ = publisher.rollback(one.number).await;
                }
            }
        })
    }

    fn node(&self, nth: usize) -> Node {
        let to_store = self.network.client(&format!("node-{nth}"));
        let to_bucket = self.lines.client(&format!("node-{nth}"));
        let machine = Machine { clock: self.clock.clone(), suspended: Arc::default() };
        let life = self.life(nth, (&to_store, &to_bucket), &machine);
        Node { life, to_store, to_bucket, machine, paused: None, suspended: None }
    }

    /// A service that follows the releases, until it dies.
    fn service(&self, nth: usize) -> (Life, Arc<Mutex<Option<StaticSite>>>) {
        let client = self.network.client(&format!("service-{nth}"));
        let opened: Arc<Mutex<Option<StaticSite>>> = Arc::default();
        let (slot, clock) = (opened.clone(), self.clock.clone());
        let store = client.store(self.store.clone());
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        let life = async move {
            loop {
                let site = StaticSite::builder(store.clone(), "shop", config()).clock(&clock).entropy(&entropy);
                if let Ok(site) = site.build().await {
                    *slot.lock().unwrap() = Some(site.clone());
                    site.run(std::future::pending()).await;
                }
                clock.sleep(MS(100)).await;
            }
        };
        (Box::pin(life), opened)
    }

    /// A visitor loads a page, whose files are asked for from now on.
    fn render(&mut self, site: &StaticSite) {
        // A process that could not reach the store knows it by the age, and renders no more pages.
        if site.state().age > MS(1_400) {
            return;
        }
        let page = site.snapshot();
        let keys: BTreeMap<&str, &str> =
            page.paths().map(|path| (path, page.url(path).unwrap().strip_prefix(BASE).unwrap())).collect();
        let keys: Vec<String> = keys.into_values().map(str::to_owned).collect();
        for key in &keys {
            if page.cache_control(key).status() != 200 {
                self.lived.violations.push(format!("{key} of {} is not served", page.number()));
            }
        }
        self.lived.pages += 1;
        self.pages.insert(page.number(), (self.clock.now(), keys));
    }

    /// Asks for all files of the pages that are open.
    fn look(&mut self) {
        let now = self.clock.now();
        self.pages.retain(|_, (at, _)| now - *at <= KEEP_FOR);
        for (number, (at, keys)) in &self.pages {
            if let Some(key) = keys.iter().find(|key| self.bucket.read(key).is_none()) {
                let told = format!("{key} of release {number} is missing {:?} after the page", now - *at);
                return self.lived.violations.push(told);
            }
        }
    }

    /// Lets the writes arrive that are due.
    fn arrive(&self) {
        let now = self.clock.now();
        let mut late = self.late.lock().unwrap();
        for (_, row) in late.extract_if(.., |(at, _)| *at <= now) {
            self.bucket.arrive(&row);
        }
    }

    /// Lets something happen to a process.
    fn strike(&mut self, nth: usize, node: &mut Node) {
        let now = self.clock.now();
        let long = |world: &Self| now + MS(world.entropy.up_to(900));
        match self.entropy.up_to(6) {
            // It dies, and begins anew.
            0 | 1 => node.life = self.life(nth, (&node.to_store, &node.to_bucket), &node.machine),
            // Its network stands still, often until its lease is over.
            2 => {
                node.to_store.pause();
                node.to_bucket.pause();
                node.paused = Some(long(self));
            }
            3 => {
                node.to_store.cut();
                node.paused = Some(now + MS(self.entropy.up_to(300)));
            }
            // A pruner that is suspended between a look at its clock and a delete is what the page warns of.
            4 | 5 if nth < PUBLISHERS => node.suspended = Some((now, long(self))),
            _ => {}
        }
    }

    fn live(mut self) -> Lived {
        let mut nodes: Vec<Node> = (0..PUBLISHERS + PRUNERS).map(|nth| self.node(nth)).collect();
        let mut services: Vec<_> = (0..SERVICES).map(|nth| self.service(nth)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let end = self.clock.now() + END;
        let mut next_fault = self.clock.now() + MS(200);
        loop {
            let now = self.clock.now();
            self.bucket.habits.forgets.store(self.entropy.up_to(39) == 0, SeqCst);
            self.arrive();
            if now >= next_fault {
                next_fault = now + MS(20 + self.entropy.up_to(250));
                let nth = self.entropy.up_to(nodes.len() as u64 - 1) as usize;
                self.strike(nth, &mut nodes[nth]);
            }
            for node in &mut nodes {
                if node.paused.is_some_and(|until| until <= now) {
                    node.to_store.resume();
                    node.to_bucket.resume();
                    node.to_store.heal();
                    node.paused = None;
                }
                match node.suspended {
                    Some((_, until)) if until > now => continue,
                    Some((since, _)) => {
                        *node.machine.suspended.lock().unwrap() += now - since;
                        node.suspended = None;
                    }
                    None => {}
                }
                let _ = node.life.as_mut().poll(&mut cx);
                self.arrive();
                self.look();
            }
            for (life, opened) in &mut services {
                let _ = life.as_mut().poll(&mut cx);
                let site = opened.lock().unwrap().clone();
                if let Some(site) = site.filter(|_| self.entropy.up_to(5) == 0) {
                    self.render(&site);
                }
            }
            if !self.lived.violations.is_empty() {
                break;
            }
            let Some(at) = self.time.next_timer().filter(|at| *at <= end) else { break };
            // Suspended processes need a look at the time, too.
            self.time.advance_to(at.min(now + MS(40)));
        }
        drop((nodes, services));
        self.finish()
    }

    /// What is on its way arrives, and a publisher without faults goes on and prunes.
    fn finish(mut self) -> Lived {
        self.lived.violations.append(&mut self.store.violations.lock().unwrap());
        if self.without != Without::Nothing {
            return self.lived;
        }
        self.network.configure(FaultConfig::default()).unwrap();
        self.lines.configure(FaultConfig::default()).unwrap();
        self.bucket.habits.forgets.store(false, SeqCst);
        let (to_store, to_bucket) = (self.network.client("last"), self.lines.client("last"));
        let publisher = self.publisher((&to_store, &to_bucket), &self.clock);
        let (time, clock) = (self.time.clone(), self.clock.clone());
        let last = time.block_on(async {
            clock.sleep(MS(1_000)).await;
            if let Ok(check) = publisher.check().await
                && !check.missing.is_empty()
            {
                return Err(format!("missing in the end: {:?}", check.missing));
            }
            let told = |error: SiteError| format!("the last publisher: {error}");
            // A request for the lease may still come late, of a process that is no more.
            let number = loop {
                match publisher.publish(release(&self.entropy)).await {
                    Err(SiteError::Busy { .. } | SiteError::LeaseLost) => clock.sleep(MS(600)).await,
                    done => break done.map_err(told)?,
                }
            };
            clock.sleep(MS(10_000)).await;
            let pruned = loop {
                match publisher.prune().await {
                    Err(SiteError::Busy { .. } | SiteError::LeaseLost) => clock.sleep(MS(600)).await,
                    done => break done.map_err(told)?,
                }
            };
            let left = publisher.releases().await.map_err(told)?.len();
            let missing = publisher.check().await.map_err(told)?.missing;
            if left != 1 || !missing.is_empty() {
                return Err(format!("{left} releases are left, {missing:?} are missing"));
            }
            Ok((number, pruned.files))
        });
        match last {
            Ok((number, pruned)) => (self.lived.releases, self.lived.pruned) = (number, pruned),
            Err(told) => self.lived.violations.push(told),
        }
        self.lived
    }
}

// Guarantee: static_content 1, 2, 3.
#[test]
fn no_page_misses_a_file_and_no_old_publisher_wins() {
    let seeds = super::schedules(60);
    let (mut pages, mut releases, mut pruned) = (0, 0, 0);
    for_each_seed(0..seeds, |seed| {
        let lived = World::new(seed, Without::Nothing).live();
        assert!(lived.violations.is_empty(), "{:#?}", lived.violations);
        pages += lived.pages;
        releases += lived.releases;
        pruned += lived.pruned;
    });
    println!(
        "{seeds} schedules of {PUBLISHERS} publishers and {PRUNERS} pruners: {releases} releases, {pages} pages, the last \
         pruner deleted {pruned} files; no violation"
    );
    super::assert_met(pages > seeds * 20 && releases > seeds * 3, (pages, releases));
}

#[test]
fn a_guard_of_a_site_that_is_taken_out_is_missed() {
    for without in [Without::Lease, Without::Head, Without::Fence] {
        super::assert_missed(without, super::controls(400, 2_000), |seed| {
            World::new(seed, without).live().violations.into_iter().next()
        });
    }
}
