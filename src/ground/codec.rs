//! The conversion of values to bytes and back, by two functions of the user.
//!
//! The crate stores bytes and brings no format. A component that keeps values of a user's type
//! takes a [`Codec`].
//!
//! ```
//! use steadfast::codec::Codec;
//!
//! // With serde, in one line:
//! let codec: Codec<Vec<u32>> =
//!     Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
//! assert_eq!(codec.encode(&vec![4, 2]).unwrap(), b"[4,2]");
//! assert_eq!(codec.decode(b"[4,2]").unwrap(), [4, 2]);
//!
//! // The error has the reason of the function:
//! let error = codec.decode(b"[4,").unwrap_err();
//! assert_eq!(error.to_string(), "cannot decode: EOF while parsing a value at line 1 column 3");
//! ```
//!
//! # Changes of the format
//!
//! Processes of two releases read each other's bytes while a release is rolled out, and stored
//! bytes outlive a release. So a new format must not be mistaken for the old one: with a
//! self-describing format such as JSON, let the codec write the number of a schema, and refuse
//! numbers that it does not know.
use std::{error::Error, fmt, sync::Arc};

/// Error of a conversion, as the user's function returned it.
type BoxError = Box<dyn Error + Send + Sync>;

type Encode<V> = dyn Fn(&V) -> Result<Vec<u8>, CodecError> + Send + Sync;
type Decode<V> = dyn Fn(&[u8]) -> Result<V, CodecError> + Send + Sync;

/// Converts values of type `V` to bytes and back. A clone shares the two functions.
///
/// The [module's page](self) has an example.
pub struct Codec<V> {
    encode: Arc<Encode<V>>,
    decode: Arc<Decode<V>>,
}

impl<V> Codec<V> {
    /// Creates a codec from two functions.
    ///
    /// Their errors are any [`Error`], or a text: a function without a reason of its own returns
    /// `ok_or("the header is missing")`.
    ///
    /// ```
    /// use steadfast::codec::Codec;
    ///
    /// let codec: Codec<u32> = Codec::new(
    ///     |n: &u32| Ok::<_, std::fmt::Error>(n.to_be_bytes().to_vec()),
    ///     |bytes| bytes.try_into().map(u32::from_be_bytes),
    /// );
    /// let error = codec.decode(b"42").unwrap_err();
    /// assert_eq!(error.to_string(), "cannot decode: could not convert slice to array");
    /// ```
    pub fn new<E, D>(
        encode: impl Fn(&V) -> Result<Vec<u8>, E> + Send + Sync + 'static,
        decode: impl Fn(&[u8]) -> Result<V, D> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<BoxError>,
        D: Into<BoxError>,
    {
        Self {
            encode: Arc::new(move |value| encode(value).map_err(|e| CodecError::Encode(e.into().into()))),
            decode: Arc::new(move |bytes| decode(bytes).map_err(|e| CodecError::Decode(e.into().into()))),
        }
    }

    /// Converts a value to bytes.
    ///
    /// # Errors
    /// [`CodecError::Encode`], with the error of the function.
    pub fn encode(&self, value: &V) -> Result<Vec<u8>, CodecError> {
        (self.encode)(value)
    }

    /// Converts bytes to a value.
    ///
    /// # Errors
    /// [`CodecError::Decode`], with the error of the function.
    pub fn decode(&self, bytes: &[u8]) -> Result<V, CodecError> {
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

/// Error of a [`Codec`]. Its text contains that of the user's function, for dead letters and
/// operators; its [`source`](Error::source) is that of the function's error.
///
/// The same bytes fail again: neither error is worth a retry.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CodecError {
    /// The value cannot be converted to bytes.
    Encode(Arc<dyn Error + Send + Sync>),
    /// The bytes cannot be converted to a value.
    Decode(Arc<dyn Error + Send + Sync>),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encode(reason) => write!(f, "cannot encode: {reason}"),
            Self::Decode(reason) => write!(f, "cannot decode: {reason}"),
        }
    }
}

impl Error for CodecError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let (Self::Encode(reason) | Self::Decode(reason)) = self;
        reason.source()
    }
}
