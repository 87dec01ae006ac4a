//! For tests of services that use this crate, and of the crate itself.
