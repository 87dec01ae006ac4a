//! The ports behind a link on which requests are lost, delayed or cut off.
use std::{fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    lease::{Acquired, Held, Lease, LeaseFuture, Renewed},
    notify::{Notices, Notifier},
    port::{BoxFuture, Capabilities, FencingToken, PortError, PortErrorKind, PortFuture},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
    },
    store::{DeleteOptions, Key, Page, PutOptions, Record, Scan, Store, StoreFuture, Version, Write},
};

/// The way of a request from a client to a backend and back.
pub(super) trait Link: Clone + fmt::Debug + Send + Sync + 'static {
    /// The description of a request, or nothing where none is needed.
    type Name: Send;

    /// Returns the capabilities of a port behind the link.
    fn capabilities(&self, can: Capabilities) -> Capabilities {
        can
    }

    /// Returns the address of a queue behind the link.
    fn address(&self, address: Option<Address>) -> Option<Address> {
        address
    }

    /// Describes a request.
    fn name(&self, request: impl FnOnce() -> Request) -> Self::Name;

    /// Sends a request, and returns its reply.
    fn pass<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        name: Self::Name,
        apply: impl FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send;
}

/// A request, as reports describe it.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: &'static str,
    target: String,
    /// Row of the key, if there is one.
    row: Option<String>,
    /// `true` if the request changes the state of the backend. To receive a message hides it.
    pub(super) writes: bool,
}

impl Request {
    fn read(method: &'static str, target: impl fmt::Display) -> Self {
        Self { method, target: target.to_string(), row: None, writes: false }
    }

    fn write(method: &'static str, target: impl fmt::Display) -> Self {
        Self { method, target: target.to_string(), row: None, writes: true }
    }

    fn of(self, key: Key<'_>) -> Self {
        Self { row: Some(key.row.to_owned()), ..self }
    }

    /// Returns the row of the key, or the target of another request.
    pub(super) fn into_target(self) -> String {
        self.row.unwrap_or(self.target)
    }

    fn settle(queue: String, settlements: &[(Receipt, Settle)]) -> Self {
        let of = |(_, settle): &(Receipt, Settle)| match settle {
            Settle::Complete => "complete",
            Settle::Release { .. } => "release",
            Settle::Abandon { .. } => "abandon",
            Settle::DeadLetter { .. } => "dead-letter",
            Settle::Forward { .. } => "forward",
        };
        let all: Vec<_> = settlements.iter().map(of).collect();
        Self::write("settle", format_args!("{queue} ({})", all.join(", ")))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of {}", self.method, self.target)
    }
}

/// Returns the error of a request without a reply.
pub(super) fn unavailable(what: &str) -> PortError {
    PortError::new(PortErrorKind::Unavailable, format!("injected: {what}"))
}

/// A backend behind a link.
#[derive(Debug)]
pub(super) struct Behind<L, P: ?Sized> {
    pub(super) link: L,
    pub(super) port: Arc<P>,
}

/// Sends a call through the link; its arguments are cloned for each application.
macro_rules! pass {
    ($self:ident, $name:expr, [$($owned:ident = $value:expr),*], $port:ident => $call:expr) => {{
        let name = $self.link.name(|| $name);
        let port = $self.port.clone();
        $(let $owned = $value;)*
        Box::pin($self.link.pass(name, move || {
            let $port = port.clone();
            $(let $owned = $owned.clone();)*
            Box::pin(async move { $call.await })
        }))
    }};
}

impl<L: Link> Store for Behind<L, dyn Store> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities(self.port.capabilities())
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        pass!(self, Request::read("get", key).of(key),
            [p = key.partition.to_owned(), r = key.row.to_owned()], port => port.get(Key::new(&p, &r)))
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        pass!(self, Request::write("put", key).of(key), [p = key.partition.to_owned(), r = key.row.to_owned(), v = value],
            port => port.put(Key::new(&p, &r), v, options))
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        pass!(self, Request::write("delete", key).of(key), [p = key.partition.to_owned(), r = key.row.to_owned()],
            port => port.delete(Key::new(&p, &r), options))
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        pass!(self, Request::read("scan", format_args!("{:?}", scan.partition)),
            [s = scan.clone()], port => port.scan(&s))
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        pass!(self, Request::write("batch", format_args!("{partition:?} ({} writes)", writes.len())),
            [p = partition.to_owned(), w = writes], port => port.batch(&p, w))
    }
}

impl<L: Link> Queue for Behind<L, dyn Queue> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities(self.port.capabilities())
    }
    fn identity(&self) -> String {
        self.port.identity()
    }
    fn address(&self) -> Option<Address> {
        self.link.address(self.port.address())
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        pass!(self, Request::write("send", self.port.identity()), [m = messages], port => port.send(m))
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        pass!(self, Request::write("receive", self.port.identity()), [], port => port.receive(receive))
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        pass!(self, Request::settle(self.port.identity(), &settlements), [s = settlements], port => port.settle(s))
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        pass!(self, Request::write("extend", self.port.identity()),
            [r = receipt.clone()], port => port.extend(&r, visibility))
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        pass!(self, Request::write("mark_begun", self.port.identity()),
            [r = receipt.clone()], port => port.mark_begun(&r, visibility, begun))
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        pass!(self, Request::read("depth", self.port.identity()), [], port => port.depth())
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        pass!(self, Request::read("peek", self.port.identity()), [], port => port.peek(max))
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        pass!(self, Request::write("purge", self.port.identity()), [], port => port.purge())
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let dead = self.port.dead_letters()?;
        Some(Arc::new(Behind { link: self.link.clone(), port: dead }))
    }
}

impl<L: Link> Lease for Behind<L, dyn Lease> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities(self.port.capabilities())
    }
    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        pass!(self, Request::write("acquire", format_args!("{name:?}")),
            [n = name.to_owned(), h = holder.to_owned()], port => port.acquire(&n, &h, term))
    }
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        pass!(self, Request::write("renew", format_args!("{name:?}")),
            [n = name.to_owned(), h = holder.to_owned()], port => port.renew(&n, &h, token, term))
    }
    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        pass!(self, Request::write("release", format_args!("{name:?}")),
            [n = name.to_owned(), h = holder.to_owned()], port => port.release(&n, &h, token))
    }
    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        pass!(self, Request::read("read", format_args!("{name:?}")), [n = name.to_owned()], port => port.read(&n))
    }
    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        pass!(self, Request::write("request_release", format_args!("{name:?}")),
            [n = name.to_owned()], port => port.request_release(&n, token))
    }
}

impl<L: Link> Notifier for Behind<L, dyn Notifier> {
    fn capabilities(&self) -> Capabilities {
        self.link.capabilities(self.port.capabilities())
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        pass!(self, Request::write("publish", format_args!("{topic:?}")),
            [t = topic.to_owned(), b = notice], port => port.publish(&t, b))
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        pass!(self, Request::read("subscribe", format_args!("{topic:?}")),
            [t = topic.to_owned()], port => port.subscribe(&t))
    }
}
