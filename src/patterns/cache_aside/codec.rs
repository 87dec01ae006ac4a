//! How values become bytes for the remote tier, and values again.
use std::{fmt, sync::Arc};

/// Writes values for the remote tier, and reads them.
///
/// A value that does not decode is a miss, and the load that follows puts a new one in its place: so a new release may change the form, as long as
/// it does not take the old form for something else. (With a self-describing format let the codec write a number of the schema, too.)
///
/// ```
/// use steadfast::cache_aside::Codec;
///
/// // With serde, in one line: Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
/// let codec: Codec<u32> = Codec::new(
///     |n: &u32| Ok::<_, std::fmt::Error>(n.to_string().into_bytes()),
///     |bytes| std::str::from_utf8(bytes).unwrap_or("?").parse::<u32>(),
/// );
/// # let _ = codec;
/// ```
pub struct Codec<V> {
    encode: Arc<Encode<V>>,
    decode: Arc<Decode<V>>,
}

type Encode<V> = dyn Fn(&V) -> Option<Vec<u8>> + Send + Sync;
type Decode<V> = dyn Fn(&[u8]) -> Option<V> + Send + Sync;

impl<V> Codec<V> {
    /// A codec of these two. An error of `encode` keeps the value in this process; one of `decode` is a miss. Both are events.
    pub fn new<E, D>(
        encode: impl Fn(&V) -> Result<Vec<u8>, E> + Send + Sync + 'static,
        decode: impl Fn(&[u8]) -> Result<V, D> + Send + Sync + 'static,
    ) -> Self {
        Self { encode: Arc::new(move |value| encode(value).ok()), decode: Arc::new(move |bytes| decode(bytes).ok()) }
    }

    pub(super) fn encode(&self, value: &V) -> Option<Vec<u8>> {
        (self.encode)(value)
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Option<V> {
        (self.decode)(bytes)
    }
}

impl<V> Clone for Codec<V> {
    fn clone(&self) -> Self {
        Self { encode: self.encode.clone(), decode: self.decode.clone() }
    }
}

impl<V> fmt::Debug for Codec<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Codec")
    }
}
