//! Setters of configuration structs.

/// Writes one setter for each listed field: a public method of the field's name.
///
/// The documentation, the default and the rule of a setting stand once: at the field, in `Default`,
/// and in `check`. A setter's documentation is a link to its field. `tests/surface.rs` checks that
/// each public field of a configuration has a setter.
///
/// | listed as | argument |
/// |---|---|
/// | `T` | the value |
/// | `Option<T>` | the value of a setting that is off by default |
/// | `impl Into<T>` | any conversion: a text, or `None` for a setting that is on by default |
/// | `[T]`, `[impl Into<T>]` | any collection of values |
macro_rules! setters {
    (impl $config:ident { $($fields:tt)* }) => {
        impl $config {
            $crate::config::setters! { @ $($fields)* }
        }
    };
    (@ $field:ident: Option<$value:ty> $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $value) -> Self {
            self.$field = Some($field);
            self
        }
        $($crate::config::setters! { @ $($rest)* })?
    };
    (@ $field:ident: impl Into<$value:ty> $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$value>) -> Self {
            self.$field = $field.into();
            self
        }
        $($crate::config::setters! { @ $($rest)* })?
    };
    (@ $field:ident: [impl Into<$value:ty>] $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: impl IntoIterator<Item = impl Into<$value>>) -> Self {
            self.$field = $field.into_iter().map(Into::into).collect();
            self
        }
        $($crate::config::setters! { @ $($rest)* })?
    };
    (@ $field:ident: [$value:ty] $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: impl IntoIterator<Item = $value>) -> Self {
            self.$field = $field.into_iter().collect();
            self
        }
        $($crate::config::setters! { @ $($rest)* })?
    };
    (@ $field:ident: $value:ty $(, $($rest:tt)*)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $value) -> Self {
            self.$field = $field;
            self
        }
        $($crate::config::setters! { @ $($rest)* })?
    };
    (@) => {};
}

pub(crate) use setters;
