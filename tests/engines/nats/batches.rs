//! What servers have since releases 2.11 and 2.12: atomic batches, lives of records, and sequences over them.
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    backend::nats::{Nats, NatsConfig},
    entropy::Entropy,
    port::{Capability, Failure, PortErrorKind},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Version, Write},
};

use super::{connect, prefix, run};
use crate::{
    faults::again,
    server::{self, Proxy, Watch, look_again, pass},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const NEW: [Capability; 3] = [Capability::AtomicBatch, Capability::TimeToLive, Capability::OrderedAppend];

fn kind(error: &StoreError) -> Option<PortErrorKind> {
    error.backend().map(|error| error.kind())
}

/// Returns writes of so many rows.
fn rows(count: usize, value: &str) -> Vec<Write> {
    (0..count).map(|i| Write::put(format!("{i:03}"), value.to_owned(), Precondition::Any)).collect()
}

async fn values(store: &dyn Store, partition: &str) -> Vec<String> {
    let rows = store.scan_all(Scan::partition(partition)).await.unwrap();
    rows.into_iter().map(|row| String::from_utf8(row.value.to_vec()).unwrap()).collect()
}

/// Starts a batch, and does not end it. The server has it when this returns.
fn unfinished(server: &server::Nats, subject: &str, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let headers = format!("NATS/1.0\r\nNats-Batch-Id: {id}\r\nNats-Batch-Sequence: 1\r\n\r\n");
    let (header, all) = (headers.len(), headers.len() + 1);
    let options = r#"{"verbose":false,"headers":true,"no_responders":true}"#;
    write!(stream, "CONNECT {options}\r\nSUB r 1\r\nHPUB {subject} r {header} {all}\r\n{headers}x\r\n").unwrap();
    let mut told = String::new();
    while !told.contains("MSG r 1") {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{told}: the server has closed the connection");
        told.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert!(told.contains("MSG r 1 0"), "the batch is refused: {told}");
    stream
}

#[test]
fn the_store_of_a_newer_server_has_batches_lives_and_sequences() {
    run(async {
        let one = connect(server::Nats::shared().url(), &prefix()).await.store();
        let cluster = connect(server::NatsCluster::shared().url(), &prefix()).await.store();
        for store in [one, cluster] {
            assert!(NEW.into_iter().all(|needed| store.capabilities().has(needed)), "{:?}", store.capabilities());
        }
    });
}

#[test]
fn an_old_server_refuses_batches_lives_and_sequences_by_name() {
    run(async {
        let store = connect(server::Nats::shared_old().url(), &prefix()).await.store();
        let refused = [
            (store.batch("p", rows(1, "x")).await.map(drop), "atomic batch"),
            (store.put(Key::new("p", "r"), "x".into(), PutOptions::new().ttl(MS(50))).await.map(drop), "time to live"),
            (store.batch("p", vec![Write::append("a/", "x")]).await.map(drop), "atomic batch"),
        ];
        for (result, name) in refused {
            let error = result.unwrap_err();
            assert_eq!(kind(&error), Some(PortErrorKind::Unsupported));
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(NEW.into_iter().all(|missing| !store.capabilities().has(missing)));
    });
}

#[test]
fn a_stream_of_an_old_server_gets_the_new_settings_at_the_first_handle_after_its_upgrade() {
    run(async {
        let mut server = server::Nats::old();
        let before = connect(server.url(), "kept").await.store();
        let (key, gone) = (Key::new("p", "kept"), Key::new("p", "gone"));
        let version = before.insert(key, "a").await.unwrap();
        before.insert(gone, "a").await.unwrap();
        before.delete(gone, Default::default()).await.unwrap();
        tokio::task::block_in_place(|| server.upgrade());
        let after = connect(server.url(), "kept").await.store();
        assert!(NEW.into_iter().all(|needed| after.capabilities().has(needed)));
        assert_eq!(after.get(key).await.unwrap().unwrap().version, version);
        let writes = vec![
            Write::put("kept", "b", Precondition::Version(version)),
            Write::put("gone", "b", Precondition::Absent),
            Write::append("log/", "x"),
        ];
        after.batch("p", writes).await.unwrap();
        assert_eq!(values(&after, "p").await, ["b", "b", "x"]);
        // The handle of before goes on as it was.
        while before.get(key).await.is_err() {
            look_again().await;
        }
        assert_eq!(before.get(key).await.unwrap().unwrap().value, "b");
    });
}

#[test]
fn a_stream_whose_settings_were_taken_back_refuses_batches_by_name() {
    run(async {
        let server = server::Nats::start();
        let store = connect(server.url(), "changed").await.store();
        let info = server.request("$JS.API.STREAM.INFO.changed_store", "").unwrap();
        let config = info.split_once("\"config\":").unwrap().1.split_once(",\"created\"").unwrap().0;
        let config = config.replace("\"allow_atomic\":true", "\"allow_atomic\":false");
        let changed = server.request("$JS.API.STREAM.UPDATE.changed_store", &config).unwrap();
        assert!(!changed.contains("\"error\""), "{changed}");
        let error = store.batch("p", rows(2, "x")).await.unwrap_err();
        assert_eq!(kind(&error), Some(PortErrorKind::Unsupported));
        assert!(error.to_string().contains("allow_atomic"), "{error}");
        assert_eq!(values(&store, "p").await, [""; 0]);
    });
}

#[test]
fn a_batch_beside_fifty_that_nobody_ends_is_throttled_until_the_server_forgets_them() {
    run(async {
        const FORGETS_AFTER: Duration = Duration::from_secs(3);
        let server = server::Nats::with_jetstream("limits { batch { timeout: 3s } }");
        let store = connect(server.url(), "crowded").await.store();
        // It gives up in time.
        let config = NatsConfig::at(server.url()).prefix("crowded").request_timeout(MS(400));
        let hurried = again("connect", || Nats::connect(config.clone())).await.0.store();
        for round in 0.. {
            let (partition, began) = (format!("p{round}"), Watch::start());
            let unfinished =
                |i: u32| unfinished(&server, &format!("crowded.s.q.v.a.%.{round}-{i}"), &format!("left {round} {i}"));
            let left: Vec<_> = (0..50).map(unfinished).collect();
            let refused = hurried.batch(&partition, rows(3, "x")).await;
            // A busy machine may take longer than the server remembers, or than the handle waits.
            let is_slow = refused.as_ref().map_or_else(|e| kind(e) == Some(PortErrorKind::TimedOut), |_| true);
            if is_slow && (began.passed() > FORGETS_AFTER || refused.is_err()) && round < 5 {
                pass(FORGETS_AFTER).await;
                continue;
            }
            let error = refused.unwrap_err();
            assert_eq!(kind(&error), Some(PortErrorKind::Throttled), "{error}");
            assert!(!error.may_have_been_applied(), "{error}");
            assert_eq!(values(&store, &partition).await, [""; 0]);
            // A single write is no batch.
            store.insert(Key::new(&partition, "alone"), "x").await.unwrap();
            drop(left);
            while let Err(error) = store.batch(&partition, rows(3, "x")).await {
                assert_eq!(kind(&error), Some(PortErrorKind::Throttled), "{error}");
            }
            assert_eq!(values(&store, &partition).await.len(), 4);
            break;
        }
    });
}

#[test]
fn batches_whose_futures_are_dropped_are_whole_or_not_there_and_block_nobody() {
    run(async {
        let nats = connect(server::Nats::shared().url(), &prefix()).await;
        let (store, entropy) = (Arc::new(nats.store()), Entropy::from_seed(5));
        for n in 0..200 {
            let (store, partition) = (store.clone(), format!("p{n}"));
            let batch = tokio::spawn(async move { store.batch(&partition, rows(120, "x")).await });
            pass(Duration::from_micros(entropy.up_to(4_000))).await;
            batch.abort();
            let _ = batch.await;
        }
        store.batch("after", rows(120, "x")).await.unwrap();
        let mut whole = 0;
        for n in 0..200 {
            let count = values(&*store, &format!("p{n}")).await.len();
            assert!(count == 0 || count == 120, "{count} rows of a batch of 120");
            whole += usize::from(count > 0);
        }
        println!("{whole} of 200 dropped batches are there");
    });
}

#[test]
fn batches_of_a_connection_that_is_cut_are_whole_and_errors_tell_the_truth() {
    run(async {
        let proxy = Proxy::start(server::Nats::shared().port());
        let prefix = prefix();
        let direct = connect(server::Nats::shared().url(), &prefix).await.store();
        let nats = connect(server::Nats::shared().url_at(proxy.port()), &prefix).await;
        let (store, entropy) = (nats.store(), Entropy::from_seed(6));
        let (mut unknown, mut refused) = (0, 0);
        for n in 0..60 {
            let partition = format!("p{n}");
            let cut = async {
                pass(Duration::from_micros(entropy.up_to(3_000))).await;
                proxy.cut();
            };
            let (stored, ()) = tokio::join!(store.batch(&partition, rows(100, "x")), cut);
            // An answer that comes late finds the batch unfinished.
            direct.batch("barrier", rows(2, "x")).await.unwrap();
            let count = values(&direct, &partition).await.len();
            match stored {
                Ok(_) => assert_eq!(count, 100),
                Err(error) if error.may_have_been_applied() => {
                    unknown += 1;
                    assert!(count == 0 || count == 100, "{count} rows of a batch of 100");
                }
                Err(_) => {
                    refused += 1;
                    assert_eq!(count, 0);
                }
            }
            while store.get(Key::new("p", "r")).await.is_err() {
                look_again().await;
            }
        }
        println!("of 60 batches {unknown} have an unknown outcome, {refused} are certainly not there");
    });
}

#[test]
fn batches_of_a_server_that_is_killed_are_whole_and_none_is_lost() {
    run(async {
        let server = Arc::new(server::Nats::start());
        let store = connect(server.url(), "killed").await.store();
        let entropy = Entropy::from_seed(7);
        let mut accepted = 0;
        for n in 0..8 {
            let work = async {
                for i in 0.. {
                    let partition = format!("p{n}.{i}");
                    let appended = Write::append("log/", "x");
                    let writes = rows(20, "x").into_iter().chain([appended]).collect();
                    match store.batch(&partition, writes).await {
                        Ok(_) => accepted += 1,
                        Err(_) => return (i, partition),
                    }
                }
                unreachable!("the server is killed")
            };
            let kill = async {
                pass(MS(10 + entropy.up_to(60))).await;
                let server = server.clone();
                tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
            };
            let ((stored, last), ()) = tokio::join!(work, kill);
            while store.get(Key::new("p", "r")).await.is_err() {
                look_again().await;
            }
            for i in 0..stored {
                assert_eq!(values(&store, &format!("p{n}.{i}")).await.len(), 21);
            }
            let count = values(&store, &last).await.len();
            assert!(count == 0 || count == 21, "{count} rows of a batch of 21");
        }
        println!("{accepted} batches were accepted");
    });
}

#[test]
fn a_short_life_ends_to_the_millisecond_and_versions_of_the_ended_are_of_no_use() {
    run(async {
        let url = server::Nats::shared().url();
        let prefix = prefix();
        let (one, other) = (connect(url.clone(), &prefix).await.store(), connect(url, &prefix).await.store());
        let key = Key::new("p", "r");
        let mut last = Version::new(0);
        for n in 0..20 {
            let life = PutOptions::new().ttl(MS(30));
            let version = one.put(key, "x".into(), life.when(Precondition::Absent)).await.unwrap();
            assert!(version > last, "{version} after {last}");
            last = version;
            while other.get(key).await.unwrap().is_some() {}
            if n % 2 == 0 {
                let late = one.replace(key, "y", version).await;
                assert!(matches!(late, Err(StoreError::Conflict { current: None, .. })), "{late:?}");
            }
        }
    });
}
