//! The conversion of values to bytes and back.
use std::{error::Error, num::ParseIntError, str::Utf8Error};

use steadfast::codec::{Codec, CodecError};

/// Returns a codec of even numbers as text.
fn codec() -> Codec<u32> {
    Codec::new(
        |n: &u32| if n.is_multiple_of(2) { Ok(n.to_string().into_bytes()) } else { Err("is odd") },
        |bytes| -> Result<u32, Box<dyn Error + Send + Sync>> { Ok(std::str::from_utf8(bytes)?.parse()?) },
    )
}

#[test]
fn an_error_of_a_codec_has_the_text_and_the_error_of_the_function() {
    let codec = codec();
    assert_eq!(codec.decode(&codec.encode(&42).unwrap()).unwrap(), 42);

    let error = codec.encode(&41).unwrap_err();
    assert_eq!(error.to_string(), "cannot encode: is odd");
    assert!(matches!(error, CodecError::Encode(_)));

    let error = codec.decode(b"4x").unwrap_err();
    assert_eq!(error.to_string(), "cannot decode: invalid digit found in string");
    assert!(matches!(&error, CodecError::Decode(reason) if reason.is::<ParseIntError>()));
    assert!(matches!(codec.decode(b"\xff"), Err(CodecError::Decode(reason)) if reason.is::<Utf8Error>()));
    // A printed chain of errors has each text once.
    assert!(error.source().is_none());
}
