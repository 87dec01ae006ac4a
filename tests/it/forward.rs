//! Macros that forward methods of a port to a field, for wrappers that change only some methods.

/// Implements `capabilities`, and a method that only forwards its arguments.
#[allow(unused_macros, reason = "not each crate of tests wraps a port")]
macro_rules! forward {
    (capabilities $to:tt) => {
        fn capabilities(&self) -> steadfast::port::Capabilities {
            self.$to.capabilities()
        }
    };
    ($to:tt $method:ident($($name:ident: $of:ty),*) -> $out:ty) => {
        fn $method<'a>(&'a self, $($name: $of),*) -> $out {
            self.$to.$method($($name),*)
        }
    };
}

/// Implements these methods of `Store` with those of the field.
#[allow(unused_macros, reason = "not each crate of tests wraps a store")]
macro_rules! forward_store {
    ($to:tt: $($method:ident),+) => { $(forward_store! { @$method $to })+ };
    (@capabilities $to:tt) => { forward! { capabilities $to } };
    (@get $to:tt) => {
        forward! { $to get(key: steadfast::store::Key<'a>)
            -> steadfast::store::StoreFuture<'a, Option<steadfast::store::Record>> }
    };
    (@put $to:tt) => {
        forward! { $to put(key: steadfast::store::Key<'a>, value: bytes::Bytes, how: steadfast::store::PutOptions)
            -> steadfast::store::StoreFuture<'a, steadfast::store::Version> }
    };
    (@delete $to:tt) => {
        forward! { $to delete(key: steadfast::store::Key<'a>, how: steadfast::store::DeleteOptions)
            -> steadfast::store::StoreFuture<'a, bool> }
    };
    (@scan $to:tt) => {
        forward! { $to scan(scan: &'a steadfast::store::Scan)
            -> steadfast::store::StoreFuture<'a, steadfast::store::Page> }
    };
    (@batch $to:tt) => {
        forward! { $to batch(partition: &'a str, writes: Vec<steadfast::store::Write>)
            -> steadfast::store::StoreFuture<'a, Vec<Option<steadfast::store::Version>>> }
    };
}

/// Implements these methods of `Queue` with those of the field.
#[allow(unused_macros, reason = "not each crate of tests wraps a queue")]
macro_rules! forward_queue {
    ($to:tt: $($method:ident),+) => { $(forward_queue! { @$method $to })+ };
    (@capabilities $to:tt) => { forward! { capabilities $to } };
    (@identity $to:tt) => {
        fn identity(&self) -> String {
            self.$to.identity()
        }
    };
    // To forward a delivery goes around `send`: only for wrappers that count or change nothing there, or have no
    // address.
    (@settle $to:tt) => {
        forward! { $to settle(settlements: Vec<(steadfast::queue::Receipt, steadfast::queue::Settle)>)
            -> steadfast::queue::QueueFuture<'a, Vec<Result<(), steadfast::queue::QueueError>>> }
    };
    (@address $to:tt) => {
        fn address(&self) -> Option<steadfast::queue::Address> {
            self.$to.address()
        }
    };
    (@send $to:tt) => {
        forward! { $to send(messages: Vec<steadfast::queue::Message>)
            -> steadfast::queue::QueueFuture<'a, Vec<steadfast::queue::MessageId>> }
    };
    (@receive $to:tt) => {
        forward! { $to receive(how: steadfast::queue::Receive)
            -> steadfast::queue::QueueFuture<'a, Vec<steadfast::queue::Delivery>> }
    };
    // Also `mark_begun`, which is an extension.
    (@extend $to:tt) => {
        forward! { $to extend(receipt: &'a steadfast::queue::Receipt, visibility: std::time::Duration)
            -> steadfast::queue::QueueFuture<'a, ()> }
        forward! { $to mark_begun(receipt: &'a steadfast::queue::Receipt, visibility: std::time::Duration, begun: bool)
            -> steadfast::queue::QueueFuture<'a, ()> }
    };
    (@depth $to:tt) => {
        forward! { $to depth() -> steadfast::queue::QueueFuture<'a, steadfast::queue::Depth> }
    };
    (@peek $to:tt) => {
        forward! { $to peek(max: usize) -> steadfast::queue::QueueFuture<'a, Vec<steadfast::queue::Peeked>> }
    };
    (@purge $to:tt) => { forward! { $to purge() -> steadfast::queue::QueueFuture<'a, u64> } };
    (@dead_letters $to:tt) => {
        fn dead_letters(&self) -> Option<std::sync::Arc<dyn steadfast::queue::Queue>> {
            self.$to.dead_letters()
        }
    };
}

/// Implements these methods of `Topic` with those of the field.
#[allow(unused_macros, reason = "not each crate of tests wraps a topic")]
macro_rules! forward_topic {
    ($to:tt: $($method:ident),+) => { $(forward_topic! { @$method $to })+ };
    // What does not change: the capabilities, the names, and the number of partitions.
    (@constants $to:tt) => {
        forward! { capabilities $to }
        fn identity(&self) -> String {
            self.$to.identity()
        }
        fn name(&self) -> &str {
            self.$to.name()
        }
        fn partitions(&self) -> u16 {
            self.$to.partitions()
        }
    };
    (@append $to:tt) => {
        forward! { $to append(partition: u16, events: Vec<steadfast::stream::Event>)
            -> steadfast::port::PortFuture<'a, Vec<steadfast::stream::Appended>> }
    };
    (@read $to:tt) => {
        forward! { $to read(partition: u16, read: steadfast::stream::Read)
            -> steadfast::port::PortFuture<'a, Vec<steadfast::stream::Recorded>> }
    };
    (@bounds $to:tt) => {
        forward! { $to bounds(partition: u16) -> steadfast::port::PortFuture<'a, steadfast::stream::Bounds> }
    };
    (@trim $to:tt) => {
        forward! { $to trim(partition: u16, before: u64) -> steadfast::port::PortFuture<'a, u64> }
    };
}
