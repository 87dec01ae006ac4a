//! The ports behind a faulty network.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::FaultClient;
use crate::{
    lease::{Acquired, Held, Lease, LeaseError, Renewed},
    notify::{Notices, Notifier},
    port::{BoxFuture, Capabilities, FencingToken, PortError},
    queue::{Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle},
    store::{DeleteOptions, Key, Page, PutOptions, Record, Scan, Store, StoreError, Version, Write},
};

/// A backend behind a network.
#[derive(Debug)]
struct Behind<P: ?Sized> {
    client: FaultClient,
    port: Arc<P>,
}

impl FaultClient {
    /// Returns the store as this client reaches it.
    pub fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Behind { client: self.clone(), port: store })
    }

    /// Returns the queue as this client reaches it. The wait for messages happens in the backend:
    /// no fault interrupts it.
    pub fn queue(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Behind { client: self.clone(), port: queue })
    }

    /// Returns the leases as this client reaches them.
    pub fn lease(&self, lease: Arc<dyn Lease>) -> Arc<dyn Lease> {
        Arc::new(Behind { client: self.clone(), port: lease })
    }

    /// Returns the notifier as this client reaches it. Notices to a subscriber pass without faults.
    pub fn notifier(&self, notifier: Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        Arc::new(Behind { client: self.clone(), port: notifier })
    }
}

/// Sends a call through the network; its arguments are cloned for each application.
macro_rules! pass {
    ($self:ident, [$($owned:ident = $value:expr),*], $port:ident => $call:expr) => {{
        let port = $self.port.clone();
        $(let $owned = $value;)*
        Box::pin($self.client.pass(move || {
            let $port = port.clone();
            $(let $owned = $owned.clone();)*
            Box::pin(async move { $call.await })
        }))
    }};
}

impl Store for Behind<dyn Store> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        pass!(self, [p = key.partition.to_owned(), r = key.row.to_owned()], port => port.get(Key::new(&p, &r)))
    }
    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        pass!(self, [p = key.partition.to_owned(), r = key.row.to_owned(), v = value],
            port => port.put(Key::new(&p, &r), v, options))
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        pass!(self, [p = key.partition.to_owned(), r = key.row.to_owned()],
            port => port.delete(Key::new(&p, &r), options))
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        pass!(self, [s = scan.clone()], port => port.scan(&s))
    }
    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        pass!(self, [p = partition.to_owned(), w = writes], port => port.batch(&p, w))
    }
}

impl Queue for Behind<dyn Queue> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn identity(&self) -> String {
        self.port.identity()
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        pass!(self, [m = messages], port => port.send(m))
    }
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        pass!(self, [], port => port.receive(receive))
    }
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        pass!(self, [s = settlements], port => port.settle(s))
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        pass!(self, [r = receipt.clone()], port => port.extend(&r, visibility))
    }
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        pass!(self, [], port => port.depth())
    }
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        pass!(self, [], port => port.peek(max))
    }
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        pass!(self, [], port => port.purge())
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        self.port.dead_letters().map(|dead| self.client.queue(dead))
    }
}

impl Lease for Behind<dyn Lease> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>> {
        pass!(self, [n = name.to_owned(), h = holder.to_owned()], port => port.acquire(&n, &h, term))
    }
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, Result<Renewed, LeaseError>> {
        pass!(self, [n = name.to_owned(), h = holder.to_owned()], port => port.renew(&n, &h, token, term))
    }
    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>> {
        pass!(self, [n = name.to_owned(), h = holder.to_owned()], port => port.release(&n, &h, token))
    }
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>> {
        pass!(self, [n = name.to_owned()], port => port.read(&n))
    }
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> BoxFuture<'a, Result<(), LeaseError>> {
        pass!(self, [n = name.to_owned()], port => port.request_release(&n, token))
    }
}

impl Notifier for Behind<dyn Notifier> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> BoxFuture<'a, Result<(), PortError>> {
        pass!(self, [t = topic.to_owned(), b = notice], port => port.publish(&t, b))
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<Notices, PortError>> {
        pass!(self, [t = topic.to_owned()], port => port.subscribe(&t))
    }
}
