//! The public suites on one server and on a cluster of three.
use std::sync::Arc;

use steadfast::{
    backend::nats::Nats,
    lease::Lease,
    notify::Notifier,
    port::BoxFuture,
    queue::Queue,
    store::Store,
    stream::Topic,
    testing::{
        conformance::Fixture,
        faults::{FaultConfig, FaultNetwork},
    },
    time::Clock,
};

use super::{connect, prefix};
use crate::{faults::again, server};

/// Opens a port of a handle.
type Open<P> = for<'a> fn(&'a Nats) -> BoxFuture<'a, Arc<P>>;

fn store(nats: &Nats) -> BoxFuture<'_, Arc<dyn Store>> {
    Box::pin(async { Arc::new(nats.store()) as Arc<dyn Store> })
}

/// Returns a topic of three partitions in the store.
fn topic(nats: &Nats) -> BoxFuture<'_, Arc<dyn Topic>> {
    Box::pin(async { crate::topics::open(Arc::new(nats.store())) })
}

fn lease(nats: &Nats) -> BoxFuture<'_, Arc<dyn Lease>> {
    Box::pin(async { Arc::new(nats.lease()) as Arc<dyn Lease> })
}

fn notifier(nats: &Nats) -> BoxFuture<'_, Arc<dyn Notifier>> {
    Box::pin(async { Arc::new(nats.notifier()) as Arc<dyn Notifier> })
}

fn queue(nats: &Nats) -> BoxFuture<'_, Arc<dyn Queue>> {
    Box::pin(async { Arc::new(again("queue", || nats.queue("jobs")).await.0) as Arc<dyn Queue> })
}

async fn handles<P: ?Sized + 'static>(url: [String; 2], prefix: &str, open: Open<P>) -> Fixture<P> {
    let [one, other] = url;
    let (one, other) = (connect(one, prefix).await, connect(other, prefix).await);
    Fixture::new(open(&one).await).with_second_handle(open(&other).await)
}

/// Returns a fixture on the server that all tests share: two connections, the first of which a proxy can cut. A restart
/// connects anew.
async fn shared<P: ?Sized + 'static>(open: Open<P>) -> Fixture<P> {
    let (server, prefix) = (server::Nats::shared(), prefix());
    let proxy = Arc::new(server::Proxy::start(server.port()));
    let fixture = handles([server.url_at(proxy.port()), server.url()], &prefix, open).await;
    let cut = proxy.clone();
    let fixture = fixture.keeping(proxy).with_cut(async move || cut.cut());
    fixture.with_restart(async move || handles([server.url(), server.url()], &prefix, open).await)
}

/// Returns a fixture on the server of release 2.10 that all tests share: two connections. A restart connects anew.
async fn old<P: ?Sized + 'static>(open: Open<P>) -> Fixture<P> {
    let (server, prefix) = (server::Nats::shared_old(), prefix());
    let fixture = handles([server.url(), server.url()], &prefix, open).await;
    fixture.with_restart(async move || handles([server.url(), server.url()], &prefix, open).await)
}

/// Returns a fixture on a server of its own. A restart kills the server.
async fn killed<P: ?Sized + 'static>(open: Open<P>) -> Fixture<P> {
    let server = Arc::new(server::Nats::start());
    let fixture = handles([server.url(), server.url()], "killed", open).await.keeping(server.clone());
    fixture.with_restart(async move || {
        let restarts = server.clone();
        tokio::task::spawn_blocking(move || restarts.restart()).await.unwrap();
        handles([server.url(), server.url()], "killed", open).await
    })
}

/// Returns a fixture on the cluster that all tests share: two connections to two of its servers. A restart connects anew.
async fn cluster<P: ?Sized + 'static>(open: Open<P>) -> Fixture<P> {
    let [one, other, third] = server::NatsCluster::shared().servers();
    let prefix = prefix();
    let fixture = handles([one.url(), other.url()], &prefix, open).await;
    fixture.with_restart(async move || handles([other.url(), third.url()], &prefix, open).await)
}

macro_rules! suites {
    ($($fixture:ident: $($suite:ident $name:ident),+;)+) => {
        $(
            mod $fixture {
                $(
                    mod $name {
                        steadfast::$suite!(async || super::super::$fixture(super::super::$name).await);
                    }
                )+
            }
        )+
    };
}

suites! {
    shared: store_conformance store, topic_conformance topic, lease_conformance lease, notifier_conformance notifier, queue_conformance queue;
    old: store_conformance store, queue_conformance queue;
    killed: store_conformance store, topic_conformance topic, lease_conformance lease, queue_conformance queue;
    cluster: store_conformance store, topic_conformance topic, lease_conformance lease, notifier_conformance notifier, queue_conformance queue;
}

/// Behind a network that loses, doubles and delays requests and replies.
mod safety {
    use super::*;

    fn network(seed: u64) -> FaultNetwork {
        let faults = FaultConfig::default().errors(0.15).lost_replies(0.15).doubled(0.15).late(0.2);
        FaultNetwork::new(faults, seed, &Clock::tokio()).unwrap()
    }

    async fn faulty_store(seed: u64) -> Fixture<dyn Store> {
        let nats = connect(server::Nats::shared().url(), &prefix()).await;
        let store = store(&nats).await;
        Fixture::new(network(seed).client("client").store(store.clone())).with_second_handle(store)
    }

    async fn faulty_queue(seed: u64) -> Fixture<dyn Queue> {
        let nats = connect(server::Nats::shared().url(), &prefix()).await;
        let queue = queue(&nats).await;
        Fixture::new(network(seed).client("client").queue(queue.clone())).with_second_handle(queue)
    }

    mod store {
        steadfast::store_safety!(async || super::faulty_store(1).await);
    }

    mod queue {
        steadfast::queue_safety!(async || super::faulty_queue(2).await);
    }
}
