// Go's clients of Redis and memcached, with a gateway: go-redis and gomemcache.
//
//	clients HOST:PORT HOST:PORT PASSWORD     the gateway's addresses for RESP and for memcached
//
// gomemcache knows no password, so its address is of a gateway without one: MEMCACHED_OPEN.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
)

func want(ok bool, what string) {
	if !ok {
		panic(what)
	}
}

func no(err error) {
	if err != nil {
		panic(err)
	}
}

func withRedis(address, password string, protocol int) {
	ctx := context.Background()
	r := redis.NewClient(&redis.Options{Addr: address, Password: password, Protocol: protocol})
	no(r.FlushAll(ctx).Err())
	no(r.Set(ctx, "k", "v", 100*time.Second).Err())
	want(r.Get(ctx, "k").Val() == "v", "get")
	want(r.TTL(ctx, "k").Val() > 90*time.Second, "ttl")
	want(errors.Is(r.Get(ctx, "none").Err(), redis.Nil), "a miss")
	want(!r.SetNX(ctx, "k", "w", 0).Val(), "setnx")
	want(r.IncrBy(ctx, "n", 42).Val() == 42, "incrby")
	want(r.Append(ctx, "s", "abc").Val() == 3, "append")
	want(r.MGet(ctx, "k", "none").Val()[1] == nil, "mget")
	long := bytes.Repeat([]byte("abc"), 1<<20)
	no(r.Set(ctx, "long", long, 0).Err())
	found, err := r.Get(ctx, "long").Bytes()
	no(err)
	want(bytes.Equal(found, long), "a long value")
	answers, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := 0; i < 500; i++ {
			p.Set(ctx, fmt.Sprint("p", i), i, 0)
		}
		return nil
	})
	no(err)
	want(len(answers) == 500, "a pipeline")
	add := func(tx *redis.Tx) error {
		now, err := tx.Get(ctx, "n").Int()
		no(err)
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			return p.Set(ctx, "n", now+1, 0).Err()
		})
		return err
	}
	no(r.Watch(ctx, add, "n"))
	want(r.Get(ctx, "n").Val() == "43", "a transaction")
	keys := map[string]bool{}
	for i := r.Scan(ctx, 0, "p1*", 100).Iterator(); i.Next(ctx); {
		keys[i.Val()] = true
	}
	want(len(keys) == 111, "scan")
	want(r.Del(ctx, "k", "none").Val() == 1, "del")
	want(r.LPush(ctx, "l", 1).Err() != nil, "there are no lists")
	no(r.Close())
}

func withMemcached(address string) {
	m := memcache.New(address)
	no(m.Ping())
	no(m.Set(&memcache.Item{Key: "k", Value: []byte("v"), Flags: 7}))
	item, err := m.Get("k")
	no(err)
	want(string(item.Value) == "v" && item.Flags == 7, "get")
	item.Value = []byte("w")
	no(m.CompareAndSwap(item))
	want(errors.Is(m.CompareAndSwap(item), memcache.ErrCASConflict), "cas")
	want(errors.Is(m.Add(item), memcache.ErrNotStored), "add")
	no(m.Set(&memcache.Item{Key: "n", Value: []byte("10")}))
	number, err := m.Increment("n", 5)
	no(err)
	want(number == 15, "incr")
	items, err := m.GetMulti([]string{"k", "none", "n"})
	no(err)
	want(len(items) == 2, "several keys")
	no(m.Touch("k", 100))
	no(m.Append(&memcache.Item{Key: "k", Value: []byte("x")}))
	no(m.Delete("k"))
	want(errors.Is(m.Delete("k"), memcache.ErrCacheMiss), "delete")
	no(m.DeleteAll())
}

func main() {
	for _, protocol := range []int{2, 3} {
		withRedis(os.Args[1], os.Args[3], protocol)
	}
	withMemcached(os.Getenv("MEMCACHED_OPEN"))
	fmt.Println("go: go-redis and gomemcache passed")
}
