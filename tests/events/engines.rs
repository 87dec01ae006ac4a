//! The same over servers, each private to this process.
#[path = "../engines/server/mod.rs"]
mod server;

use std::sync::Arc;

use steadfast::{backend, store::Store};
#[cfg(feature = "nats")]
use steadfast::{event_sourcing::EventStore, port::PortErrorKind};
#[cfg(any(feature = "postgres", feature = "redis"))]
use {
    crate::crashes::ends_at_any_request,
    steadfast::testing::{crash_at_every_write, fail_at_every_write},
};

use crate::crashes::runtime;

async fn open(url: &str) -> Arc<dyn Store> {
    backend::open(url).await.unwrap().store()
}

/// Ends and fails a process at each of its requests.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn each_effect_is_there_once(url: &str) {
    let runtime = runtime();
    let store = runtime.block_on(open(url));
    assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
    assert!(fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
    crate::views::ends_at_any(&runtime, &store);
    crate::index_table::ends_at_any(&runtime, &store);
}

/// Four handles append to 100 streams.
fn every_reader_sees_one_order(url: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let stores = [open(url).await, open(url).await, open(url).await, open(url).await];
        crate::commits::writers_of_four_handles(stores, 40).await;
    });
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;

    #[test]
    fn a_process_that_ends_or_fails_at_any_request_has_each_effect_once() {
        let server = server::Postgres::start();
        each_effect_is_there_once(&server.url());
    }

    #[test]
    fn every_reader_sees_one_order_of_commits() {
        let server = server::Postgres::start();
        every_reader_sees_one_order(&server.url());
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;

    #[test]
    fn a_process_that_ends_or_fails_at_any_request_has_each_effect_once() {
        let server = server::Redis::durable();
        each_effect_is_there_once(&server.url());
    }

    #[test]
    fn every_reader_sees_one_order_of_commits() {
        let server = server::Redis::durable();
        every_reader_sees_one_order(&server.url());
    }
}

#[cfg(feature = "nats")]
mod nats {
    use super::*;

    #[test]
    fn a_release_without_ordered_appends_is_refused_by_name() {
        let (server, runtime) = (server::Nats::old(), runtime());
        let refused = runtime.block_on(async { EventStore::open(open(&server.url()).await, "log").await }).unwrap_err();
        assert_eq!(refused.kind(), PortErrorKind::Unsupported);
        assert!(refused.to_string().contains("append"), "{refused}");
    }

    #[test]
    fn a_release_without_batches_has_no_index_beside_its_rows_and_a_newer_one_has() {
        let (old, newest, runtime) = (server::Nats::old(), server::Nats::durable(), runtime());
        runtime.block_on(async {
            crate::index_table::is_refused_beside(open(&old.url()).await);
            crate::index_table::lies_beside(open(&newest.url()).await).await;
        });
    }

    #[test]
    fn copies_of_rows_are_right() {
        let (server, runtime) = (server::Nats::durable(), runtime());
        runtime.block_on(async { crate::index_table::are_right_on(open(&server.url()).await).await });
    }

    // Not at each request: a page costs the whole of a partition there, and that would take more than ten minutes.
    #[test]
    fn every_reader_sees_one_order_of_commits() {
        let server = server::Nats::durable();
        every_reader_sees_one_order(&server.url());
    }
}
