//! The public suites on real servers.
use std::sync::Arc;

use steadfast::{
    backend::redis::Redis, lease::Lease, notify::Notifier, store::Store, stream::Topic, testing::conformance::Fixture,
};

use super::{connect, prefix};
use crate::server;

/// Returns a fixture on the server that all tests share: two connections, the first of which a proxy can cut.
async fn shared<P: ?Sized + 'static>(port: impl Fn(&Redis) -> Arc<P>) -> Fixture<P> {
    let (server, prefix) = (server::Redis::shared(), prefix());
    let proxy = Arc::new(server::Proxy::start(server.port()));
    let one = connect(server.url_at(proxy.port()), &prefix).await;
    let other = connect(server.url(), &prefix).await;
    let cut = proxy.clone();
    let fixture = Fixture::new(port(&one)).with_second_handle(port(&other)).keeping(proxy);
    fixture.with_cut(async move || cut.cut())
}

/// Returns a fixture on a server of its own that syncs each write. A restart kills the server.
async fn durable<P: ?Sized + 'static>(port: impl Fn(&Redis) -> Arc<P> + Copy + 'static) -> Fixture<P> {
    let server = Arc::new(server::Redis::durable());
    let handles = {
        let server = server.clone();
        async move || {
            let (one, other) = (connect(server.url(), "durable").await, connect(server.url(), "durable").await);
            Fixture::new(port(&one)).with_second_handle(port(&other))
        }
    };
    let fixture = handles().await.keeping(server.clone());
    fixture.with_restart(async move || {
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
        handles().await
    })
}

macro_rules! suites {
    ($($fixture:ident: $($suite:ident $name:ident $port:ident $method:ident),+;)+) => {
        $(
            mod $fixture {
                use super::*;

                $(
                    mod $name {
                        use super::*;

                        steadfast::$suite!(async || {
                            super::super::$fixture(|redis| -> Arc<dyn $port> { Arc::new(redis.$method()) }).await
                        });
                    }
                )+
            }
        )+
    };
}

suites! {
    shared: store_conformance store Store store, lease_conformance lease Lease lease,
        notifier_conformance notify Notifier notifier;
    durable: store_conformance store Store store, lease_conformance lease Lease lease;
}

mod topic {
    use super::*;

    fn topic(redis: &Redis) -> Arc<dyn Topic> {
        crate::topics::open(Arc::new(redis.store()))
    }

    mod shared {
        use super::*;

        steadfast::topic_conformance!(async || super::super::shared(topic).await);
    }

    mod durable {
        use super::*;

        steadfast::topic_conformance!(async || super::super::durable(topic).await);
    }
}
