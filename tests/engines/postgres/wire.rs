//! Round trips and bytes of each operation.
use std::time::Duration;

use steadfast::{
    lease::{Acquired, Lease},
    notify::Notifier,
    store::{Key, Precondition, PutOptions, Scan, Store, StoreExt, Write},
};

use super::{connect, shared};
use crate::server::{self, Lane, Proxy};

struct Wire(Proxy);

impl Wire {
    /// Runs one operation; returns its round trips and bytes.
    async fn of<T>(&self, operation: impl Future<Output = T>) -> (T, u64, u64) {
        let bytes = || self.0.bytes(Lane::Requests) + self.0.bytes(Lane::Replies);
        let (trips, before) = (self.0.round_trips(), bytes());
        let done = operation.await;
        (done, self.0.round_trips() - trips, bytes() - before)
    }
}

#[tokio::test]
async fn each_operation_is_one_round_trip_of_a_few_hundred_bytes() {
    let server = server::Postgres::shared();
    let wire = Wire(Proxy::start(server.port()));
    let mut report = String::new();
    for prepare in [false, true] {
        let postgres = connect(&shared().url(server.url_at(wire.0.port())).prepare(prepare)).await;
        let (store, lease, notifier) = (postgres.store(), postgres.lease(), postgres.notifier());
        let key = Key::new("orders", "42");
        let value = || bytes::Bytes::from_static(&[7; 100]);
        let mut costs = Vec::new();
        let most = |operation: &str| if operation.contains("10") { 5000 } else { 1300 };
        // The second time, when statements that are prepared are there. A busy machine may return a connection late: as long as
        // they cost more, they run again, some times.
        for time in 1..=6 {
            costs.clear();
            let (_, trips, bytes) = wire.of(store.put(key, value(), PutOptions::new())).await;
            costs.push(("put", trips, bytes));
            let (record, trips, bytes) = wire.of(store.get(key)).await;
            costs.push(("get", trips, bytes));
            let version = record.unwrap().unwrap().version;
            let (_, trips, bytes) = wire.of(store.replace(key, value(), version)).await;
            costs.push(("replace", trips, bytes));
            let writes = (0..10).map(|i| Write::put(format!("{i}"), value(), Precondition::Any)).collect();
            let (_, trips, bytes) = wire.of(store.batch("ten", writes)).await;
            costs.push(("batch of 10", trips, bytes));
            let scan = Scan::partition("ten");
            let (page, trips, bytes) = wire.of(store.scan(&scan)).await;
            assert_eq!(page.unwrap().rows.len(), 10);
            costs.push(("scan of 10", trips, bytes));
            let (_, trips, bytes) = wire.of(store.batch("orders", vec![Write::append("events/", value())])).await;
            costs.push(("append", trips, bytes));
            let (_, trips, bytes) = wire.of(store.delete(key, Precondition::Any.into())).await;
            costs.push(("delete", trips, bytes));
            let (granted, trips, bytes) = wire.of(lease.acquire("n", "h", Duration::from_secs(9))).await;
            costs.push(("acquire", trips, bytes));
            let Acquired::Granted(token) = granted.unwrap() else { panic!("it is free") };
            let (_, trips, bytes) = wire.of(lease.renew("n", "h", token, Duration::from_secs(9))).await;
            costs.push(("renew", trips, bytes));
            let (_, trips, bytes) = wire.of(notifier.publish("t", value())).await;
            costs.push(("publish", trips, bytes));
            if time > 1 && costs.iter().all(|(operation, trips, bytes)| *trips == 1 && *bytes <= most(operation)) {
                break;
            }
        }
        for (operation, trips, bytes) in &costs {
            report.push_str(&format!("{operation}, prepared {prepare}: {trips} round trips, {bytes} bytes\n"));
        }
        for (operation, trips, bytes) in costs {
            assert_eq!(trips, 1, "{report}\n{operation}");
            assert!(bytes <= most(operation), "{report}\n{operation}: {bytes} bytes");
        }
    }
    println!("{report}");
}
