//~ the trait `steadfast::call::Operation` is not dyn compatible
//~ instead of `dyn Operation`: `Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Result<T, E>> + Send>> + Send>`
use steadfast::call::Operation;

fn main() {
    let _: Vec<Box<dyn Operation<Output = u8, Error = ()>>> = Vec::new();
}
