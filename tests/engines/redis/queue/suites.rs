//! The contract of the queue.
use steadfast::{
    port::Capability,
    testing::{
        conformance::{self, Fixture},
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::*;

/// Returns a fixture of two handles, as two processes have them, with these settings.
async fn handles(config: RedisConfig) -> Fixture<dyn Queue> {
    let one = Redis::connect(config.clone()).await.unwrap();
    let other = Redis::connect(config).await.unwrap();
    Fixture::new(queue(&one, "jobs")).with_second_handle(queue(&other, "jobs")).with_neighbour(queue(&one, "others"))
}

/// On the server that all tests share, and that keeps nothing on a disk.
mod volatile {
    use super::*;

    steadfast::queue_conformance!(async || handles(config(server::Redis::shared().port())).await);
}

/// On a server that syncs each write, is killed and started again, and whose connections are cut.
mod durable {
    use super::*;

    steadfast::queue_conformance!(async || {
        let server = Arc::new(server::Redis::durable());
        let config = config(server.port());
        let (restarts, cuts) = (server.clone(), server.clone());
        let fixture = handles(config.clone()).await.with_cut(async move || cuts.cut());
        let fixture = fixture.with_restart(async move || {
            restarts.restart();
            handles(config.clone()).await
        });
        assert!(fixture.port().capabilities().has(Capability::Durable));
        fixture.keeping(server)
    });
}

/// Behind a network that loses, doubles and delays requests and replies.
mod safety {
    use super::*;

    async fn faulty(seed: u64) -> Fixture<dyn Queue> {
        let redis = connect(server::Redis::shared()).await;
        let faults = FaultConfig::default().errors(0.15).lost_replies(0.15).doubled(0.15).late(0.2);
        let network = FaultNetwork::new(faults, seed, &Clock::tokio()).unwrap();
        let jobs = queue(&redis, "jobs");
        let fixture = Fixture::new(network.client("client").queue(jobs.clone())).with_second_handle(jobs);
        fixture.with_neighbour(queue(&redis, "others"))
    }

    mod seed_1 {
        use super::*;

        steadfast::queue_safety!(async || faulty(1).await);
    }

    mod seed_2 {
        use super::*;

        steadfast::queue_safety!(async || faulty(2).await);
    }
}

// Guarantee: queue 7, 15.
#[test]
fn an_id_is_remembered_for_a_window_that_passes_in_real_time() {
    let cases = conformance::queue::cases();
    let cases: Vec<_> = cases.iter().filter(|case| case.name().ends_with("for_the_stated_window")).collect();
    assert_eq!(cases.len(), 2);
    for case in cases {
        let made = async || handles(config(server::Redis::shared().port()).deduplication_window(MS(1_500))).await;
        case.run(MINUTE, made).unwrap_or_else(|error| panic!("{}: {error}", case.name()));
    }
}

#[test]
fn a_server_that_keeps_nothing_on_a_disk_is_not_durable() {
    block_on(async {
        let can = queue(&connect(server::Redis::shared()).await, "jobs").capabilities();
        assert!(!can.has(Capability::Durable) && can.has(Capability::Push) && can.has(Capability::Ordered));
        assert!(can.has(Capability::Linearizable), "it has no replica");
        assert_eq!(can.deduplicates_for(), Some(S(300)));
    });
}
