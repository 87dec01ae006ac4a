//! Macros that forward methods of a port to a field, for wrappers that change only some methods.

/// Implements these methods of `Store` with those of the field.
#[allow(unused_macros, reason = "not each crate of tests wraps both ports")]
macro_rules! forward_store {
    ($to:tt: $($method:ident),+) => { $(forward_store! { @$method $to })+ };
    (@capabilities $to:tt) => {
        fn capabilities(&self) -> steadfast::port::Capabilities {
            self.$to.capabilities()
        }
    };
    (@get $to:tt) => {
        fn get<'a>(
            &'a self,
            key: steadfast::store::Key<'a>,
        ) -> steadfast::port::BoxFuture<'a, Result<Option<steadfast::store::Record>, steadfast::store::StoreError>> {
            self.$to.get(key)
        }
    };
    (@put $to:tt) => {
        fn put<'a>(
            &'a self,
            key: steadfast::store::Key<'a>,
            value: bytes::Bytes,
            options: steadfast::store::PutOptions,
        ) -> steadfast::port::BoxFuture<'a, Result<steadfast::store::Version, steadfast::store::StoreError>> {
            self.$to.put(key, value, options)
        }
    };
    (@delete $to:tt) => {
        fn delete<'a>(
            &'a self,
            key: steadfast::store::Key<'a>,
            options: steadfast::store::DeleteOptions,
        ) -> steadfast::port::BoxFuture<'a, Result<bool, steadfast::store::StoreError>> {
            self.$to.delete(key, options)
        }
    };
    (@scan $to:tt) => {
        fn scan<'a>(
            &'a self,
            scan: &'a steadfast::store::Scan,
        ) -> steadfast::port::BoxFuture<'a, Result<steadfast::store::Page, steadfast::store::StoreError>> {
            self.$to.scan(scan)
        }
    };
    (@batch $to:tt) => {
        fn batch<'a>(
            &'a self,
            partition: &'a str,
            writes: Vec<steadfast::store::Write>,
        ) -> steadfast::port::BoxFuture<
            'a,
            Result<Vec<Option<steadfast::store::Version>>, steadfast::store::StoreError>,
        > {
            self.$to.batch(partition, writes)
        }
    };
}

/// Implements these methods of `Queue` with those of the field.
#[allow(unused_macros, reason = "not each crate of tests wraps both ports")]
macro_rules! forward_queue {
    ($to:tt: $($method:ident),+) => { $(forward_queue! { @$method $to })+ };
    (@capabilities $to:tt) => {
        fn capabilities(&self) -> steadfast::port::Capabilities {
            self.$to.capabilities()
        }
    };
    (@identity $to:tt) => {
        fn identity(&self) -> String {
            self.$to.identity()
        }
    };
    // To forward a delivery goes around `send`: only for wrappers that count or change nothing there, or have no
    // address.
    (@settle $to:tt) => {
        fn settle<'a>(
            &'a self,
            settlements: Vec<(steadfast::queue::Receipt, steadfast::queue::Settle)>,
        ) -> steadfast::port::BoxFuture<
            'a,
            Result<Vec<Result<(), steadfast::queue::QueueError>>, steadfast::queue::QueueError>,
        > {
            self.$to.settle(settlements)
        }
    };
    (@address $to:tt) => {
        fn address(&self) -> Option<steadfast::queue::Address> {
            self.$to.address()
        }
    };
    (@send $to:tt) => {
        fn send<'a>(
            &'a self,
            messages: Vec<steadfast::queue::Message>,
        ) -> steadfast::port::BoxFuture<'a, Result<Vec<steadfast::queue::MessageId>, steadfast::queue::QueueError>>
        {
            self.$to.send(messages)
        }
    };
    (@receive $to:tt) => {
        fn receive<'a>(
            &'a self,
            receive: steadfast::queue::Receive,
        ) -> steadfast::port::BoxFuture<'a, Result<Vec<steadfast::queue::Delivery>, steadfast::queue::QueueError>>
        {
            self.$to.receive(receive)
        }
    };
    // Also `mark_begun`, which is an extension.
    (@extend $to:tt) => {
        fn extend<'a>(
            &'a self,
            receipt: &'a steadfast::queue::Receipt,
            visibility: std::time::Duration,
        ) -> steadfast::port::BoxFuture<'a, Result<(), steadfast::queue::QueueError>> {
            self.$to.extend(receipt, visibility)
        }
        fn mark_begun<'a>(
            &'a self,
            receipt: &'a steadfast::queue::Receipt,
            visibility: std::time::Duration,
            begun: bool,
        ) -> steadfast::port::BoxFuture<'a, Result<(), steadfast::queue::QueueError>> {
            self.$to.mark_begun(receipt, visibility, begun)
        }
    };
    (@depth $to:tt) => {
        fn depth(
            &self,
        ) -> steadfast::port::BoxFuture<'_, Result<steadfast::queue::Depth, steadfast::queue::QueueError>> {
            self.$to.depth()
        }
    };
    (@peek $to:tt) => {
        fn peek(
            &self,
            max: usize,
        ) -> steadfast::port::BoxFuture<'_, Result<Vec<steadfast::queue::Peeked>, steadfast::queue::QueueError>> {
            self.$to.peek(max)
        }
    };
    (@purge $to:tt) => {
        fn purge(&self) -> steadfast::port::BoxFuture<'_, Result<u64, steadfast::queue::QueueError>> {
            self.$to.purge()
        }
    };
    (@dead_letters $to:tt) => {
        fn dead_letters(&self) -> Option<std::sync::Arc<dyn steadfast::queue::Queue>> {
            self.$to.dead_letters()
        }
    };
}
