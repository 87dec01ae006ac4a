//! The conversion of values to bytes for the remote tier, and back.
use std::{fmt, sync::Arc};

/// Encodes values for the remote tier and decodes them.
///
/// A value that does not decode is a miss, and the following load replaces it. So a new release may
/// change the format, if it cannot mistake the old format for the new one. (With a self-describing
/// format, let the codec write a schema number, too.)
///
/// ```
/// use steadfast::cache_aside::Codec;
///
/// // With serde, in one line:
/// // Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
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
    /// Creates a codec from two functions. If `encode` fails, the value is kept in this process
    /// only; if `decode` fails, the lookup is a miss. Both are reported by events.
    pub fn new<E, D>(
        encode: impl Fn(&V) -> Result<Vec<u8>, E> + Send + Sync + 'static,
        decode: impl Fn(&[u8]) -> Result<V, D> + Send + Sync + 'static,
    ) -> Self {
        Self { encode: Arc::new(move |value| encode(value).ok()), decode: Arc::new(move |bytes| decode(bytes).ok()) }
    }

    pub(crate) fn encode(&self, value: &V) -> Option<Vec<u8>> {
        (self.encode)(value)
    }

    pub(crate) fn decode(&self, bytes: &[u8]) -> Option<V> {
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
