//! A replica takes over under load: what was accepted is there, as far as the engine promises it.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use steadfast::{
    backend::Backend,
    lease::{Acquired, Lease, LeaseError},
    queue::{Message, Queue, QueueError, Receive, Settle},
    store::{Key, PutOptions, Store},
};
use tokio::{task::JoinSet, time::sleep};

use super::{MS, PATIENCE, again, blocking};

/// What clients were told, in the order of the answers.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) messages: BTreeSet<u64>,
    pub(super) tokens: Vec<u64>,
    pub(super) versions: Vec<u64>,
}

/// Clients that send, lock and write until they are told to stop.
#[derive(Debug)]
pub(super) struct Load {
    told: Arc<Mutex<Told>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn start(backend: &Backend) -> Self {
        let queue = again("queue", || backend.queue("jobs")).await.0;
        Self::over(queue, backend.lease(), backend.store())
    }

    pub(super) fn over(queue: Arc<dyn Queue>, lease: Arc<dyn Lease>, store: Arc<dyn Store>) -> Self {
        let (told, stop) = (Arc::<Mutex<Told>>::default(), Arc::<AtomicBool>::default());
        let mut tasks = JoinSet::new();
        for sender in 0..4_u64 {
            let (queue, told, stop) = (queue.clone(), told.clone(), stop.clone());
            tasks.spawn(async move {
                for number in (0_u64..).map(|at| at * 4 + sender) {
                    // Sent again after a fault, it is accepted once.
                    let message = || vec![Message::new(number.to_string()).deduplicate(format!("id {number}"))];
                    again("send", || queue.send(message())).await;
                    told.lock().unwrap().messages.insert(number);
                    if stop.load(SeqCst) {
                        return;
                    }
                }
            });
        }
        let (shared, ended) = (told.clone(), stop.clone());
        tasks.spawn(async move {
            while !ended.load(SeqCst) {
                let acquired = again("acquire", || lease.acquire("lock", "holder", MS(500))).await.0;
                let Acquired::Granted(token) = acquired else { panic!("nobody else asks") };
                shared.lock().unwrap().granted(token.as_u64());
                match lease.release("lock", "holder", token).await {
                    Ok(()) | Err(LeaseError::NotHeld) => {}
                    Err(_) => sleep(MS(10)).await,
                }
                sleep(MS(2)).await;
            }
        });
        let (shared, ended) = (told.clone(), stop.clone());
        tasks.spawn(async move {
            while !ended.load(SeqCst) {
                let put = || store.put(Key::new("a", "b"), "c".into(), PutOptions::new());
                let version = again("put", put).await.0;
                shared.lock().unwrap().versions.push(version.as_u64());
                sleep(MS(1)).await;
            }
        });
        Self { told, stop, tasks }
    }

    pub(super) fn accepted(&self) -> BTreeSet<u64> {
        self.told.lock().unwrap().messages.clone()
    }

    /// Waits until clients were told of so many more messages.
    pub(super) async fn progress(&self, more: usize) {
        let before = self.accepted().len();
        let until = async {
            while self.accepted().len() < before + more {
                sleep(MS(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await.expect("requests are answered again");
    }

    /// Waits until clients have heard the last answers of a server that is gone, and returns the accepted messages.
    #[cfg(feature = "redis")]
    async fn accepted_until_now(&self, proxy: &crate::server::Proxy) -> BTreeSet<u64> {
        while proxy.open() > 0 {
            sleep(MS(5)).await;
        }
        loop {
            let accepted = self.accepted();
            sleep(MS(100)).await;
            if self.accepted() == accepted {
                return accepted;
            }
        }
    }

    /// Ends the load; returns what clients were told.
    pub(super) async fn end(mut self) -> Told {
        self.stop.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

impl Told {
    /// Records a grant, but not one that is taken up again after an unanswered release.
    fn granted(&mut self, token: u64) {
        if self.tokens.last() != Some(&token) {
            self.tokens.push(token);
        }
    }

    /// Tokens and versions have grown with each answer.
    pub(super) fn assert_grown(&self) {
        let grow = |numbers: &[u64]| numbers.windows(2).find(|pair| pair[0] >= pair[1]).map(<[u64]>::to_vec);
        assert_eq!(grow(&self.tokens), None, "a token came twice or sank");
        assert_eq!(grow(&self.versions), None, "a version came twice or sank");
    }
}

/// Takes all messages from the queue, and returns their numbers, each as often as it was accepted.
pub(super) async fn drain(queue: &dyn Queue) -> Vec<u64> {
    let (mut found, mut last) = (BTreeMap::new(), Instant::now());
    while again("depth", || queue.depth()).await.0.total() > 0 {
        // Those of a receive that a busy machine has not answered come again.
        let receive = Receive::new(100, Duration::from_secs(60)).wait(MS(500));
        let deliveries = again("receive", || queue.receive(receive)).await.0;
        let before = found.len();
        for taken in &deliveries {
            found.insert(taken.id.clone(), String::from_utf8_lossy(&taken.body).parse::<u64>().unwrap());
        }
        if found.len() > before {
            last = Instant::now();
        }
        assert!(last.elapsed() < PATIENCE, "{} messages were received, and others stay in the queue", found.len());
        let settlements: Vec<_> = deliveries.into_iter().map(|taken| (taken.receipt, Settle::Complete)).collect();
        for settled in again("settle", || queue.settle(settlements.clone())).await.0 {
            assert!(settled.as_ref().map_or_else(QueueError::is_lease_lost, |()| true), "{settled:?}");
        }
    }
    found.into_values().collect()
}

#[cfg(feature = "postgres")]
#[test]
fn a_promoted_synchronous_standby_of_postgres_has_all_that_was_accepted() {
    use crate::server::{Postgres, Proxy};
    super::run(async {
        let promotions = super::size("STEADFAST_PROMOTIONS", 1);
        let (mut primary, mut standby) = blocking(|| {
            let primary = Postgres::start();
            let standby = primary.standby("standby_0", true);
            (primary, standby)
        })
        .await;
        let proxy = Proxy::start(primary.port());
        let backend = steadfast::backend::open(&primary.url_at(proxy.port())).await.unwrap();
        let load = Load::start(&backend).await;
        for promotion in 1..=promotions {
            load.progress(200).await;
            let port = standby.port();
            standby = blocking(move || {
                // The standby takes over only when the old primary can accept nothing.
                primary.kill();
                standby.promote();
                standby
            })
            .await;
            proxy.lead_to(port);
            proxy.cut();
            load.progress(50).await;
            (primary, standby) = blocking(move || {
                let next = standby.standby(&format!("standby_{promotion}"), true);
                (standby, next)
            })
            .await;
        }
        load.progress(50).await;
        let told = load.end().await;
        told.assert_grown();
        let found = drain(&*backend.queue("jobs").await.unwrap()).await;
        let (count, found) = (found.len(), found.into_iter().collect::<BTreeSet<_>>());
        assert_eq!(count, found.len(), "a message was accepted twice");
        let lost: Vec<_> = told.messages.difference(&found).collect();
        assert!(lost.is_empty(), "{lost:?}: {} of {} are lost", lost.len(), told.messages.len());
        println!(
            "{promotions} promotions: {} messages, {} tokens and {} versions, none lost or repeated",
            told.messages.len(),
            told.tokens.len(),
            told.versions.len()
        );
        drop((primary, standby));
    });
}

#[cfg(feature = "redis")]
#[test]
fn a_promoted_replica_of_redis_lacks_only_what_had_not_reached_it() {
    use crate::server::{Proxy, Redis, wait_until};
    super::run(async {
        let (primary, replica, link) = blocking(|| {
            let primary = Redis::durable();
            let link = Proxy::start(primary.port());
            let replica = primary.replica(&[]);
            replica.command(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
            wait_until("the replica follows through the proxy", || {
                link.open() > 0 && replica.command(&["INFO", "replication"]).contains("master_link_status:up")
            });
            (primary, replica, link)
        })
        .await;
        let proxy = Proxy::start(primary.port());
        let backend = steadfast::backend::open(&primary.url_at(proxy.port())).await.unwrap();
        let load = Load::start(&backend).await;
        load.progress(200).await;

        // The replica has all that was accepted until now, and nothing of what comes after the link fails.
        let replicated = load.accepted();
        let (primary, replica, link) = blocking(|| {
            let offset = |server: &Redis, name: &str| -> u64 {
                let info = server.command(&["INFO", "replication"]);
                info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
            };
            let wanted = offset(&primary, "master_repl_offset:");
            wait_until("the replica has it", || offset(&replica, "slave_repl_offset:") >= wanted);
            link.hold();
            (primary, replica, link)
        })
        .await;
        load.progress(100).await;
        let port = replica.port();
        let replica = blocking(move || {
            primary.kill();
            link.cut();
            replica.promote();
            replica
        })
        .await;
        let accepted = load.accepted_until_now(&proxy).await;
        proxy.lead_to(port);
        proxy.cut();
        load.progress(50).await;
        let told = load.end().await;
        told.assert_grown();
        let found: BTreeSet<_> = drain(&*backend.queue("jobs").await.unwrap()).await.into_iter().collect();
        let lost: BTreeSet<_> = told.messages.difference(&found).copied().collect();
        println!("{} messages were accepted, {} of them lost with the primary", told.messages.len(), lost.len());
        assert!(lost.is_disjoint(&replicated), "lost although the replica had them");
        assert!(lost.is_subset(&accepted), "lost although the new primary accepted them");
        assert!(lost.len() >= 50, "the link was down, and almost nothing was lost: this run shows nothing");
        drop(replica);
    });
}
