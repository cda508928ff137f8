//! Types that must never be shown: each says so in a line below it, checked when the crate is compiled.

use zeroize::Zeroizing;

/// Fails to compile when a type implements a trait: `never!(Type: Debug, Serialize)`.
///
/// When it does not, one of two blanket implementations fits and the compiler can infer which; when
/// it does, both fit, and it cannot. (The technique of the static_assertions crate.)
macro_rules! never {
    ($secret:ty: $($shown:path),+) => {
        $(const _: fn() = || {
            trait Either<Which> {
                fn fits() {}
            }
            struct Shown;
            impl<T: ?Sized> Either<()> for T {}
            impl<T: ?Sized + $shown> Either<Shown> for T {}
            let _ = <$secret as Either<_>>::fits;
        };)+
    };
}

/// A type that holds a secret: neither printed nor sent. Fields in braces are erased on drop:
/// `secret!(KeyShare { secret })`.
macro_rules! secret {
    ($secret:ident { $($field:tt),+ }) => {
        crate::secrets::secret!($secret);
        const _: fn(&$secret) = |it| {
            fn is_erased<T: ::zeroize::ZeroizeOnDrop>(_: &T) {}
            $(is_erased(&it.$field);)+
        };
    };
    ($($secret:ty),+ $(,)?) => {
        $(crate::secrets::never!(
            $secret: ::std::fmt::Debug, ::std::fmt::Display, ::serde::Serialize
        );)+
    };
}

/// The stored or sent form of a secret, which is encoded on purpose, and not printed.
macro_rules! secret_form {
    ($($secret:ty),+ $(,)?) => {
        $(crate::secrets::never!($secret: ::std::fmt::Debug, ::std::fmt::Display);)+
    };
}

pub(crate) use {never, secret, secret_form};

/// Erases a large secret, many bytes at a time: dropping it would write one byte after the other.
pub(crate) fn wipe(mut secret: Zeroizing<Vec<u8>>) {
    let mut bytes = std::mem::take(&mut *secret);
    let all = bytes.capacity();
    bytes.clear();
    bytes.resize(all, 0);
    zeroize::optimization_barrier(bytes.as_slice());
}
