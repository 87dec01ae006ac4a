//! Backends chosen by URL.
use std::{sync::Arc, time::Duration};

use steadfast::{
    backend::{self, Backend},
    port::PortErrorKind,
    queue::{Message, QueueExt},
    store::{Key, StoreExt},
    time::block_on,
};

const LONG: Duration = Duration::from_secs(30);

fn open(url: &str) -> Backend {
    block_on(backend::open(url)).unwrap()
}

fn refused(url: &str) -> String {
    let error = block_on(backend::open(url)).unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
    error.to_string()
}

/// A service as any user writes it: it knows ports, and no backend.
async fn serve(backend: &Backend) {
    let (store, jobs) = (backend.store(), backend.queue("jobs").await.unwrap());
    store.insert(Key::new("orders", "42"), "placed").await.unwrap();
    jobs.send_one(Message::new("pay 42")).await.unwrap();
    let term = backend.lease().acquire("leader", "a", LONG).await.unwrap();
    drop(term);
    let mut notices = backend.notifier().subscribe("orders").await.unwrap();
    backend.notifier().publish("orders", "42".into()).await.unwrap();
    notices.recv().await;
}

#[test]
fn one_url_opens_all_ports_of_its_backend() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".to_owned(), format!("sqlite:{}", folder.path().join("state.db").display())] {
        let backend = open(&url);
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            serve(&backend).await;
            // A clone shares the state, and a queue is known by its name.
            let other = backend.clone();
            assert!(other.store().get(Key::new("orders", "42")).await.unwrap().is_some());
            let taken = other.queue("jobs").await.unwrap().receive_one(LONG).await.unwrap().unwrap();
            assert_eq!(&taken.body[..], b"pay 42");
            assert!(other.queue("").await.is_err());
            assert!(other.queue(&"x".repeat(1025)).await.is_err());
        });
        assert!(url.starts_with(backend.scheme()), "{backend:?}");
    }
}

#[test]
fn memory_that_is_opened_twice_is_not_shared() {
    let (one, two) = (open("memory:"), open("memory:"));
    block_on(one.store().insert(Key::new("p", "r"), "x")).unwrap();
    assert!(block_on(two.store().get(Key::new("p", "r"))).unwrap().is_none());
    assert!(!Arc::ptr_eq(&one.lease(), &two.lease()));
}

#[test]
fn a_url_that_names_no_backend_says_which_are_known() {
    assert_eq!(
        refused(""),
        "invalid `url`: must begin with a scheme: `memory:`, `nats://HOST`, `postgres://HOST`, `redis://HOST`, `sqlite:FILE`"
    );
    assert_eq!(refused("memory:x"), "invalid `url`: nothing may follow `memory:`");
    assert!(refused("sqlite:").contains("path"));
    #[cfg(not(feature = "nats"))]
    assert!(refused("tls://host").contains("the feature `nats`"));
    #[cfg(not(feature = "postgres"))]
    assert!(refused("postgres://host").contains("the feature `postgres`"));
    #[cfg(not(feature = "redis"))]
    assert!(refused("rediss://host").contains("the feature `redis`"));
}

#[test]
fn no_error_of_a_url_has_its_password() {
    for url in ["mysql://me:secret@host/db", "//me:secret@host", "me:secret@host"] {
        assert!(!refused(url).contains("secret"), "{}", refused(url));
    }
}
