//! Sentinels promote replicas of Redis under load.
use std::{collections::BTreeSet, sync::Arc};

use steadfast::{
    backend::redis::{Redis, RedisConfig},
    queue::Queue,
};

use super::{
    MS, blocking,
    promotion::{Load, drain},
};
use crate::server::{self, wait_until};

/// Three servers, one of which is the primary, and three sentinels.
#[derive(Debug)]
struct Watched {
    servers: Vec<server::Redis>,
    sentinels: Vec<server::Redis>,
}

impl Watched {
    fn start() -> Self {
        let primary = server::Redis::durable();
        let durable = ["--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"];
        let replicas = [primary.replica(&durable), primary.replica(&durable)];
        let down_after = "sentinel down-after-milliseconds jobs 1500";
        let sentinels: Vec<_> = (0..3).map(|_| primary.sentinel(&[down_after])).collect();
        let watched = Self { servers: [primary].into_iter().chain(replicas).collect(), sentinels };
        watched.wait_until_whole();
        watched
    }

    fn url(&self) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/jobs", sentinels.join(","))
    }

    /// Returns the place of the server that a sentinel names.
    fn primary(&self, sentinel: usize) -> usize {
        let named = self.sentinels[sentinel].command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "jobs"]);
        let port: u16 = named.lines().nth(1).unwrap().parse().unwrap();
        self.servers.iter().position(|server| server.port() == port).unwrap()
    }

    /// Waits until both replicas follow, and the sentinels know all.
    fn wait_until_whole(&self) {
        wait_until("two replicas follow", || {
            let info = self.servers[self.primary(0)].command(&["INFO", "replication"]);
            info.matches("state=online").count() == 2
        });
        wait_until("each sentinel knows the others and the replicas", || {
            (0..3).all(|at| {
                let sentinel = &self.sentinels[at];
                let known = sentinel.command(&["SENTINEL", "MASTER", "jobs"]);
                let lines: Vec<_> = known.lines().collect();
                let is = |name, value| lines.windows(2).any(|pair| pair == [name, value]);
                let replicas = sentinel.command(&["SENTINEL", "REPLICAS", "jobs"]);
                is("num-slaves", "2")
                    && is("num-other-sentinels", "2")
                    && is("flags", "master")
                    && replicas.lines().filter(|line| *line == "slave").count() >= 2
                    && self.primary(at) == self.primary(0)
            })
        });
    }

    /// Returns the number of promotions so far.
    fn epoch(&self) -> String {
        let known = self.sentinels[0].command(&["SENTINEL", "MASTER", "jobs"]);
        let mut lines = known.lines();
        lines.find(|line| *line == "config-epoch");
        lines.next().unwrap().to_owned()
    }

    /// Promotes a replica: the primary is killed, or the operator orders it. Returns the place of the old primary.
    fn promote(&self, by_kill: bool) -> usize {
        let old = self.primary(0);
        if by_kill {
            self.servers[old].kill();
        } else {
            wait_until("the order is accepted", || {
                self.sentinels[0].command(&["SENTINEL", "FAILOVER", "jobs"]) == "OK"
            });
        }
        wait_until("the sentinels name another", || (0..3).all(|at| self.primary(at) != old));
        old
    }

    /// Starts a killed server as a replica of the new primary, and waits until all are there.
    fn mend(&self, old: usize) {
        if !self.servers[old].is_running() {
            let primary = self.servers[self.primary(0)].port().to_string();
            self.servers[old].set(&["--replicaof", "127.0.0.1", &primary]);
            self.servers[old].start_again();
        }
        self.wait_until_whole();
    }
}

/// Returns the number of messages that were accepted and are lost.
async fn promotions(config: impl FnOnce(RedisConfig) -> RedisConfig) -> usize {
    let promotions = super::size("STEADFAST_PROMOTIONS", 2);
    let watched = Arc::new(blocking(Watched::start).await);
    let redis = Redis::connect(config(RedisConfig::at(watched.url()))).await.unwrap();
    let queue: Arc<dyn Queue> = Arc::new(redis.queue("jobs").unwrap());
    let load = Load::over(queue.clone(), Arc::new(redis.lease()), Arc::new(redis.store()));
    for promotion in 0..promotions {
        load.progress(200).await;
        let servers = watched.clone();
        let old = blocking(move || servers.promote(promotion % 2 == 0)).await;
        let servers = watched.clone();
        blocking(move || servers.mend(old)).await;
        load.progress(50).await;
    }
    let told = load.end().await;
    told.assert_grown();
    let found: BTreeSet<_> = drain(&*queue).await.into_iter().collect();
    let lost = told.messages.difference(&found).count();
    println!(
        "{promotions} promotions, the sentinels count {}: {} messages, {} tokens, {} versions; {lost} messages lost",
        watched.epoch(),
        told.messages.len(),
        told.tokens.len(),
        told.versions.len()
    );
    lost
}

#[test]
fn sentinels_lead_to_each_new_primary_and_no_version_or_token_is_given_twice() {
    super::run(async {
        // What no replica had is lost: that is printed.
        promotions(|config| config).await;
    });
}

#[test]
fn with_all_replicas_confirming_promotions_by_sentinels_lose_nothing() {
    super::run(async {
        assert_eq!(promotions(|config| config.replicas(2).request_timeout(MS(2000))).await, 0, "messages are lost");
    });
}
