//! Addresses: sealos' `ipNet` and `ipAt`, also for IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::call::{Call, Group, int, text};
use super::growth::Growth::Fresh;
use super::growth::fixed;
use crate::print::cut;
use crate::value::Value;

pub(super) const GROUP: Group = &[
    // Returns the network of an address with prefix: `10.1.0.0/16` for `10.1.2.3/16`.
    ("ipNet", "s", Fresh(fixed::<4096>), |a| {
        let network = Network::of(a)?;
        Ok(Value::text(format!("{}/{}", network.address(0), network.prefix)))
    }),
    // Returns address number N of a network: `ipAt "10.96.0.0/12" 10` is 10.96.0.10.
    ("ipAt", "si", Fresh(fixed::<4096>), |a| {
        let network = Network::of(a)?;
        let index = u128::try_from(int(a, 1)).ok();
        match index.filter(|index| *index <= network.host_mask()) {
            Some(index) => Ok(Value::text(network.address(index).to_string())),
            None => Err(format!("{} is outside of {}", int(a, 1), cut(&text(a, 0)))),
        }
    }),
];

struct Network {
    bits: u32,
    start: u128,
    prefix: u32,
}

impl Network {
    fn of(a: &Call<'_>) -> Result<Self, String> {
        let text = text(a, 0);
        Self::parse(&text)
            .ok_or_else(|| format!("{:?} is not a network like 10.96.0.0/12", cut(&text)))
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (bits, number) = match address.parse().ok()? {
            IpAddr::V4(address) => (32, u128::from(u32::from(address))),
            IpAddr::V6(address) => (128, u128::from(address)),
        };
        let prefix: u32 = prefix.parse().ok().filter(|prefix| *prefix <= bits)?;
        let mut network = Self { bits, start: 0, prefix };
        network.start = number & !network.host_mask();
        Some(network)
    }

    fn host_mask(&self) -> u128 {
        match self.bits - self.prefix {
            128 => u128::MAX,
            bits => (1 << bits) - 1,
        }
    }

    fn address(&self, index: u128) -> IpAddr {
        let number = self.start | index;
        match u32::try_from(number) {
            Ok(number) if self.bits == 32 => IpAddr::V4(Ipv4Addr::from(number)),
            _ => IpAddr::V6(Ipv6Addr::from(number)),
        }
    }
}
