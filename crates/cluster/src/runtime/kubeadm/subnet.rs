//! Subnets in CIDR notation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use imgctl_base::error::{Error, Result};

/// A subnet such as `10.96.0.0/22`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    network: IpAddr,
    bits: u8,
}

impl Subnet {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`{text}` is not a subnet"))
                .hint("a subnet looks like 10.96.0.0/22")
        };
        let (address, bits) = text.trim().split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { network: masked(address, bits), bits })
    }

    pub(super) fn holds(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.network.is_ipv4() && masked(address, self.bits) == self.network
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.holds(other.network) || other.holds(self.network)
    }

    /// Returns the address after the network's own; Kubernetes assigns it to the API's Service.
    pub(crate) fn first_host(&self) -> IpAddr {
        match self.network {
            IpAddr::V4(address) => Ipv4Addr::from(u32::from(address).wrapping_add(1)).into(),
            IpAddr::V6(address) => Ipv6Addr::from(u128::from(address).wrapping_add(1)).into(),
        }
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets() {
        let subnet = Subnet::parse("10.96.3.7/22").unwrap();
        assert_eq!(subnet.to_string(), "10.96.0.0/22");
        assert_eq!(subnet.first_host().to_string(), "10.96.0.1");
        assert!(subnet.holds("10.96.3.255".parse().unwrap()));
        assert!(!subnet.holds("10.96.4.0".parse().unwrap()));
        assert!(!subnet.holds("::1".parse().unwrap()));
        assert!(subnet.overlaps(&Subnet::parse("10.0.0.0/8").unwrap()));
        assert!(!subnet.overlaps(&Subnet::parse("100.64.0.0/10").unwrap()));
        assert_eq!(Subnet::parse("fd00::/108").unwrap().first_host().to_string(), "fd00::1");
        assert!(Subnet::parse("0.0.0.0/0").unwrap().holds("1.2.3.4".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            assert!(Subnet::parse(wrong).is_err(), "{wrong}");
        }
    }
}
